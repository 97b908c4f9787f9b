"""What is generated in README.md, docs and the model's card: tables and numbers from raw results, code, the plot.

`python bench/report.py` fills the blocks `<!-- KIND:begin ARGUMENTS --> ... <!-- KIND:end -->`:

- headline: the fastest level beside the fastest other library;
- levels: all levels, each beside the one that it builds on and beside the fastest other library;
- history: the original program's steps, and what each won there and here;
- step lK: what level K won, with batch sizes and the share of the hardware's limit;
- ideas lK: what each idea of level K won, where these were measured apart; tried lK: what was tried in vain;
- cost lK: what level K costs, and the level before it, stage by stage;
- change lK [FUNCTION ...]: what level K's `build`, or these functions in it, changed of the level that it builds on;
- code FILE NAME [VARIABLE]: a function or class, as it stands in the file, or its first loop on that variable;
- precisions: which levels compute in what; gpus, cards, portable: which of them a GPU runs, and how fast;
- operators: the table of operators and techniques; matrix: a transformer's, by how they are computed;
- steps OPERATOR LAYER [TECHNIQUE ...]: one operator's techniques at one layer;
- beside: levels on a GPU as so many times the fastest other library;
- peers [lK]: other libraries beside the levels, or beside level K, a table for each machine;
- chain METHOD: the plan of blocks 3 to 6, fused by this method, on an H200;
- image_chain METHOD PRECISION: the same of AlexNet's first two layers; pyramid: these by tile of their result;
- scaling, whole, ranks, mixed, path, strikes, overhead, forecasts: the offload, from bench/results/offload;
- parted, parallel, collectives: parts of networks on two ranks, what they send, how long it took; sums beside NCCL's;
- classify: `charcnn classify` from file to file, beside the level's own rate; engines: it beside Ray, Dask and Spark;
- measured: all levels on all machines; sanitizer: what compute-sanitizer found;
- layers: each prepared layer beside cuDNN and cuBLAS, and its share of the measured peak;
- conv2d, conv2d_cpu; attention, bert and gemm PRECISION: these beside the libraries'; gemm ladder: the steps there;
- networks, network_techniques, networks_beside, host_bytes: of images, how they run, beside others, from the host;
- mma_steps, wgmma_steps: a ladder of small kernels: what each step can reach, and what it reached beside cuBLAS;
- agreement: what each precision does to a trained network's labels, from bench/precisions.py;
- accuracy MODEL PART: what a model that ships, "fast" or "accurate", reached on its "validation" or "test" rows;
- behind KIND: where others are ahead; compared: other ways to label texts; backends, backends_beside: numba-cuda-mlir;
- training MODEL: the command that trained it; training_steps, training_ranks: steps; loss_curves; few_rows: few rows;
- layer_costs: parameters, products and bytes of layers; training_memory PRECISION: a rank's bytes;
- fused_layers, half_chain, fused_alexnet: fused4's convolutions, blocks 3 to 6's, AlexNet's first two, in few kernels;
- op_times, op_times_here: the course project's; ours. calls: host time. energy_operations, energy_bytes, texts_a_joule.

`python bench/report.py --check` changes nothing, and exits with status 1 if a block or a picture is out of date.
`plot` draws README's plot, `pictures` has a file for each kind of picture in docs/pictures.
`schema` reads the raw results, `limits` has what levels are held against; the others are called after their blocks.
"""
