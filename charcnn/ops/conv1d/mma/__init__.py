"""conv1d_nlc on tensor cores of any GPU since compute capability 8.0: by mma.sync, ldmatrix and cp.async.

The product is that of `double_buffered`, in one of four precisions: a block's warps have a part of its tile each.

- A tile of features of one chunk of channels, 128 bytes of them, with K - 1 rows more, serves all K taps: for the next
  tap a warp's matrices begin one row later. Only the weights go through a ring of stages, a tap and chunk each.
- Shared memory is swizzled: the 16-byte piece p of row r lies where p xor r % 8 would. Eight rows that are read at once
  are then in different banks, whether they are neighbours or, with pooling, three apart.
- With pooling, a warp's three matrices of 16 rows are the first, second and third positions of the same 16 windows. So
  the three sums that a maximum is taken of are in one thread, and nothing is exchanged.
- A thread's sums are of columns two by two, eight apart. The weights are laid out with their columns so permuted that
  four such pairs are eight neighbouring channels: a thread stores 16 bytes or twice as many.
- In fp16x3 a number is the sum of two halves. Who writes features splits them, once, and the kernel reads what it
  multiplies. Tensor cores round sums towards zero: products of 16 numbers each are summed there, the rest in float32.
- Of images, and of sequences with strides, padding or dilation, a stage of features is of one tap. A row of it is the
  pixel that an output's window has there, copied from where it lies, or zeros. So all rows of the product are outputs.
"""
