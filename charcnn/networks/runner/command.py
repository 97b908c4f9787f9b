"""A network of images as a command: what the runner of levels asks for, and the options that only networks have."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np

from charcnn import catalog, images, offload
from charcnn.aliases import Function, Record
from charcnn.gpu import device
from charcnn.host.arguments import above_0, positive
from charcnn.host.terminal import prepare_streams, tell
from charcnn.layers import Node, Softmax
from charcnn.levels.runner import command, options
from charcnn.levels.runner.options import SHOWN, SIMULATED_INPUTS, Job
from charcnn.model import params
from charcnn.networks import fused, weights
from charcnn.networks.architecture import Architecture
from charcnn.networks.lowering import Ops, each
from charcnn.networks.parts import parted, relayed, shared
from charcnn.networks.reference import expected
from charcnn.networks.runner import fit, tables
from charcnn.ops.chain.plan2d import METHODS
from charcnn.ops.reference import softmax
from charcnn.training.images import ENGINES

DATA: dict[str, Callable[..., images.Images]] = {
    "fashion-mnist": images.fashion_mnist,
    "mnist": images.mnist,
    "digits": images.digits,
}
"""Data sets by the names that --images takes."""

ROWS = 512
"""Random inputs of a network of rows."""

CPU = "winograd_cpu"
"""The technique where none is asked for and there is no GPU; with one, the network's row has it."""


def main(name: str, argv: list[str] | None = None) -> NoReturn:
    """Run the network of this page as a command; ends the process."""
    subject = NetworkCommand(name)
    asked = sys.argv[1:] if argv is None else argv
    if not {"--compare", "--plan", "--train"} & {word.partition("=")[0] for word in asked}:
        command.run(subject, argv)
    prepare_streams()
    chosen = subject.parser(quiet=False).parse_args(argv)
    try:
        if chosen.profile:
            raise ValueError("--profile: needs a run; leave out --compare, --plan and --train")
        options.check_files(chosen, subject.reads(chosen))
        if getattr(chosen, "invert", False) and not chosen.compare:
            raise ValueError("--invert: needs a run; leave out --plan and --train")
        if getattr(chosen, "train", None) is not None:
            sys.exit(fit.train(subject, chosen))
        sys.exit(tables.compare(subject, chosen) if chosen.compare else subject.planned(chosen))
    except (ValueError, OSError, device.DeviceError) as error:
        tell(f"{name}: {' '.join(str(error).split())}")
        sys.exit(options.UNUSABLE)


class NetworkCommand:
    """A network, as `charcnn.levels.runner.command.Subject` says."""

    offload = staticmethod(offload.asynchronous)
    reads = staticmethod(options.reads)

    def __init__(self, name: str) -> None:
        self.name, self._row = name, catalog.network(name)
        self.page = self._row.module
        self.raw: dict[str, str] = getattr(self.page, "RAW", {})

    def parser(self, *, quiet: bool) -> argparse.ArgumentParser:
        """Its command line; `quiet` where another rank prints the help and the errors."""
        of, kind = f"python -m charcnn.networks.{self.name}", "rows" if self._of_rows else "images"
        found = options.parser(
            self.name,
            quiet=quiet,
            prog=of,
            description=self.page.__doc__,
            epilog=f"""examples:
  {of}                {"random rows" if self._of_rows else "the shipped images"}
  {of} --as naive     an operator per layer
  {of} --compare      all techniques
  mpiexec -n 4 {of}   {kind} shared by 4 processes

exit status: 0 results passed their check; 1 they did not, or a crash; 2 unusable options, files or machine""",
        )
        add = found.add_argument
        on_gpu, ways = ", ".join(self._row.on_gpu), ", ".join(self._techniques())
        how = f"technique: {ways} (default {CPU}; on a GPU the first of {on_gpu} that runs)"
        add("--as", dest="technique", type=self._technique_name, metavar="T", help=how)
        variants = self.page.VARIANTS
        add("--variant", choices=variants, help=f"the network's variant (default {variants[0]}; tiny in the simulator)")
        precisions = f"{', '.join(catalog.networks.TENSOR_CORES)} on tensor cores (default fp16), elsewhere fp32"
        options.add_work(add, kind, "default: the technique's own", precisions)
        kinds = ".safetensors, a state_dict as .pt" + ", or a folder of raw arrays" * bool(self.raw)
        add("--params", metavar="FILE", help=f"weights: {kinds} (default: the shipped ones, else random)")
        if self.raw:
            held = f"layout of a folder's {', '.join(self.raw)} (default {weights.LAYOUTS[0]})"
            add("--layout", choices=weights.LAYOUTS, default=weights.LAYOUTS[0], help=held)
        add("--random", action="store_true", help="random weights from --seed, instead of the shipped ones")
        add("--images", metavar="FILE", help=f"a picture, a folder of pictures, IDX, .npy, or {', '.join(DATA)}")
        add("--resize", action="store_true", help="resize pictures to the network's size")
        if self._on_black:
            add("--invert", action="store_true", help="swap bright and dark, for pictures that are dark on white")
        add("--layers", action="store_true", help="print a row per layer: shape, FLOP, bytes, time, share of roofline")
        add(
            "--plan",
            action="store_true",
            help="print how the convolutions fuse, and with --as the layers after each rewrite; run nothing",
        )
        if hasattr(self.page, "DATA"):
            add("--train", metavar="FILE", help=f"train on --images (default {self.page.DATA}), and write the weights")
            add(
                "--epochs",
                type=positive,
                default=12,
                metavar="E",
                help="with --train: passes over the images (default 12)",
            )
            add(
                "--rate",
                type=above_0,
                default=2e-3,
                metavar="R",
                help="with --train: peak learning rate (default 0.002)",
            )
            add(
                "--engine",
                choices=ENGINES,
                default="auto",
                help="with --train: own kernels on the CPU, or PyTorch (default auto: PyTorch where it is installed)",
            )
        one = "with --as strong, in fp32, fp16 or bf16: the first two convolutions and what follows them as one kernel"
        add("--fuse", type=int, choices=(fused.FUSED,), metavar="2", help=one)
        add("--method", choices=METHODS, help="with --fuse: how that kernel traverses an image (default: by forecast)")
        add("--compare", action="store_true", help="check and time all techniques that run here")
        parts = "; tensor: a share of every layer per rank; pipeline: a stage of layers per rank"
        options.add_offload(add, self.offload, parts)
        return found

    @property
    def _of_rows(self) -> bool:
        """Whether its inputs are rows of features, not images."""
        return self._row.architecture().image[1] == 1

    @property
    def _on_black(self) -> bool:
        """Whether its images are grey: the data sets of such are bright on black."""
        channels, height, _ = self._row.architecture().image
        return channels == 1 and height > 1

    def _techniques(self) -> list[str]:
        return [row.name for row in catalog.NETWORK_TECHNIQUES if row.computes(self.name)]

    def _technique_name(self, name: str) -> str:
        """The name of a technique that computes the network."""
        if name not in self._techniques():
            known = any(name == row.name for row in catalog.NETWORK_TECHNIQUES)
            raise argparse.ArgumentTypeError(
                f"{name}: {f'{self.name} has no such technique' if known else 'is not a technique'}: need one of "
                + ", ".join(self._techniques())
            )
        return name

    def program(self, chosen: argparse.Namespace) -> tuple[catalog.Program, Function]:
        """The technique that --as names, or else the fastest of the machine."""
        technique = self._technique(chosen)
        timed = {"graph": False} if chosen.layers and technique.graphs else {}  # a graph is timed as a whole
        how = {"method": chosen.method} if technique.home == "fused" else {}
        build = partial(technique.build, technique.name, **timed, **how)
        if chosen.offload in offload.PARTED and technique.device == "cuda":
            return technique, (shared if chosen.offload == "tensor" else relayed)(technique, build)
        return technique, parted(chosen.offload, build) if chosen.offload in offload.PARTED else build

    def _fastest(self, precision: str | None) -> str:
        """The technique where none is asked for; of none in this precision, the first, which says so."""
        if device.SIMULATED:
            return CPU
        ways = [catalog.network_technique(name) for name in self._row.on_gpu]
        limit = device.shared_limit()
        found = [way.name for way in ways if way.computes(self.name, limit) and options.serves(way, precision)]
        return (found or self._row.on_gpu)[0]

    def _technique(self, chosen: argparse.Namespace) -> catalog.NetworkTechnique:
        """The technique that --as names, or else the fastest; with --fuse the form of `strong` that has one kernel."""
        if chosen.fuse and chosen.technique == "strong":
            return catalog.fused_technique(chosen.precision)
        return catalog.network_technique(chosen.technique or self._fastest(chosen.precision), self.name)

    def _check_fused(self, chosen: argparse.Namespace) -> None:
        """Raise ValueError unless what --fuse asks for can be."""
        if chosen.method and not chosen.fuse:
            raise ValueError(f"--method {chosen.method}: needs --fuse {fused.FUSED}")
        if chosen.fuse and chosen.technique != "strong":
            raise ValueError(f"--fuse {chosen.fuse}: needs --as strong, not {self._technique(chosen).name}")
        if chosen.fuse and chosen.offload in offload.PARTED:
            raise ValueError(f"--fuse {chosen.fuse}: with --offload {chosen.offload} no rank has both layers")

    def planned(self, chosen: argparse.Namespace) -> int:
        """Print each step from layers to what --as computes, and how convolutions fuse. Exit status: 0."""
        network, batch = self.architecture(chosen), chosen.batch or 1
        self._check_fused(chosen)
        steps = self._lowered(network, chosen)
        if chosen.technique:
            tables.lowering(steps)
        if chosen.technique in (None, "strong", "strong_mma"):
            tables.plan(network, steps[-1][1], batch)
        return 0

    def _lowered(self, network: Architecture, chosen: argparse.Namespace) -> list[tuple[str, Ops]]:
        """The ops after each rewrite of the technique that --as names, or of `strong`; errors are the rewrites'."""
        technique = self._technique(chosen) if chosen.technique else catalog.network_technique("strong")
        how = {"batch": chosen.batch or 1, "precision": technique.precision(chosen.precision)}
        if chosen.fuse:
            how["method"] = chosen.method
        return list(each(network.nodes, technique.module.rewrites(technique.name, network, **how)))

    def architecture(self, chosen: argparse.Namespace, *, simulated: bool = False) -> Architecture:
        """The network's variant that the options name.

        Raises:
            ValueError: it is too large for the simulator.
        """
        found: Architecture = self._row.architecture(chosen.variant or ("tiny" if simulated else None))
        if simulated and found.variant != "tiny":
            raise ValueError(
                f"no GPU in use, and {found.flops:,} FLOP an image would take the simulator hours: run with --variant "
                "tiny, on the CPU with --as loops, cpu_gemm or winograd_cpu, or on a machine with an NVIDIA GPU"
            )
        return found

    def prepare(self, program: catalog.Program, chosen: argparse.Namespace) -> Job:
        """Read weights and images as the options say."""
        options.check(program, chosen)
        self._check_fused(chosen)
        if chosen.layers and chosen.offload in offload.PARTED:
            raise ValueError(f"--layers: with --offload {chosen.offload} no rank has all layers; leave one out")
        simulated = program.device == "cuda" and device.SIMULATED
        network = self.architecture(chosen, simulated=simulated)
        if chosen.fuse:  # says what does not fit before anything runs
            self._lowered(network, chosen)
        held, random = self._weights(network, chosen)
        if chosen.images is None and network.image[1] == 1:  # rows of features: nothing to see
            rows = np.random.default_rng(chosen.seed).integers(0, 256, (ROWS, network.length), np.uint8)
            read = images.Images(rows, f"{ROWS} random rows")
        else:
            read = self._read(network, held, chosen)
        if read.labels is not None:
            read.check_labels(network.classes)
        count = chosen.inputs or (min(len(read.rows), SIMULATED_INPUTS) if simulated else len(read.rows))
        return Job(
            offload.Repeated(read.rows, count),
            read.source,
            held,
            network.variant,
            lambda rows, rounding: expected(rows, held, network, rounding),
            held.classes,
            list((read.names or ())[:SHOWN]),
            read.labels,
            random=random,
            shares=lambda results: results if isinstance(network.layers[-1], Softmax) else softmax(results),
        )

    def _read(self, network: Architecture, held: params.Params, chosen: argparse.Namespace) -> images.Images:
        """The images that the options name; of those that the weights were fitted to only such as were held out."""
        if chosen.images is None:
            read = images.sample(network.image)
        elif chosen.images == "digits" == held.metadata.get("data"):
            read = fit.digits(network)[1]
        elif chosen.images in DATA:
            read = DATA[chosen.images](shape=network.image, **{"resize": True} if chosen.images != "digits" else {})
        else:
            read = images.read(chosen.images, network.image, resize=chosen.resize)
        if not self._on_black:
            return read
        read = read.inverted() if chosen.invert else read
        light = read.on_light(network.image)
        if light and chosen.images not in DATA:
            tell(
                f"{self.name}: warning: {light:,} of {len(read.rows):,} images have a light border, but networks of "
                f"grey images learn from bright on black: {'leave out' if chosen.invert else 'try'} --invert"
            )
        return read

    def head(self, program: catalog.Program) -> Record:
        """What its report begins with."""
        return {"schema": "network", "network": self.name, "technique": program.name, "title": self.page.TITLE}

    def products(self, job: Job, stages: Sequence[str]) -> Mapping[str, Sequence[Node]]:
        """Of the layers that the stages are named after."""
        network: Any = job.params.config
        try:
            found = tables.staged(network, stages)
        except ValueError:  # a stage that starts no kernel is not among them
            return {}
        return {stage: [node for node in nodes if node.flops] for stage, nodes in found}

    def closing(self, report: Record, job: Job, chosen: argparse.Namespace, results: np.ndarray) -> list[str]:
        """With --layers a row each; where ranks have parts of the network, a line each."""
        if "parts" in report:
            return tables.parts(job.params.config, report)
        if not chosen.layers:
            return []
        peaks = tables.Peaks.of(self._technique(chosen), report["precision"])
        network, timed = job.params.config, report.get("profile")
        if timed is not None:  # alone on one GPU
            seconds = {stage: spent / 1e6 for stage, spent in timed["layers"].items()}
            found = tables.layers(network, seconds, timed["inputs"], timed["inputs"], peaks)
            how = f"CUDA events around each kernel, medians of {timed['runs']} runs of one batch"
        else:
            found = tables.layers(network, report["stages"], report["inputs"], report["batch"], peaks)
            on_gpu = report["gpus"] and not report["simulated"]
            how = "CUDA events around each layer, with the host's time to launch it" if on_gpu else "the host's clock"
        return [*found, f"timed by {how}" + ", after a first batch that is not" * (not report["simulated"])]

    def _weights(self, network: Architecture, chosen: argparse.Namespace) -> tuple[params.Params, bool]:
        """What --params names, else what ships, else random ones; and whether they are random."""
        path = chosen.params or (None if chosen.random else weights.shipped(network))
        if path is None:
            return params.init(network, chosen.seed), True
        return weights.load(path, network, self.raw, getattr(chosen, "layout", weights.LAYOUTS[0])), False
