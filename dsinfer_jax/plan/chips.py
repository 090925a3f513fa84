"""Public specifications of accelerators, one row per JAX device.

Peak numbers from vendors' data sheets, without sparsity. They bound a step from below; what a
program reaches of them is for benchmarks to say. Links are bytes per second and direction.
"""

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True)
class Chip:
    """One device.

    Attributes:
        name: as on the command line.
        memory: bytes.
        bandwidth: of memory, bytes per second.
        bf16, fp8: dense products, floating-point operations per second. Without fp8 units the rate
            is that of bf16: codes are widened first.
        link: to all neighbours together in the fast domain, bytes per second in one direction.
        domain: devices that the fast links join.
        network: out of the domain, bytes per second and device; 0 where nothing is outside.
        torus: dimensions of the torus of the links; 0 for a switch, where all pairs are equal.
    """

    name: str
    memory: int
    bandwidth: float
    bf16: float
    fp8: float
    link: float
    domain: int
    network: float
    torus: int = 0

    def rate(self, format_name: str) -> float:
        """Products per second of "f32", "bf16" or "fp8". Float32 runs in passes of shorter
        numbers: half of bf16, as engine.md 9.1 counts it."""
        return {"f32": self.bf16 / 2, "bf16": self.bf16, "fp8": self.fp8}[format_name]


CHIPS = {
    chip.name: chip
    for chip in (
        # NVIDIA H100 and H200 data sheets (SXM), HGX: 8 devices on NVLink 4 of 900 GB/s both ways,
        # one 400 Gb/s adapter per device
        Chip("h100", 80 * 10**9, 3.35e12, 989e12, 1979e12, 450e9, 8, 50e9),
        Chip("h200", 141 * 10**9, 4.8e12, 989e12, 1979e12, 450e9, 8, 50e9),
        # NVIDIA Blackwell data sheet: HGX B200 with 8 devices, GB200 NVL72; NVLink 5, 1.8 TB/s
        Chip("b200", 180 * 10**9, 7.7e12, 2250e12, 4500e12, 900e9, 8, 50e9),
        Chip("gb200", 186 * 10**9, 8.0e12, 2500e12, 5000e12, 900e9, 72, 50e9),
        # NVIDIA Blackwell Ultra data sheet: HGX B300, 800 Gb/s adapters
        Chip("b300", 288 * 10**9, 8.0e12, 2250e12, 4500e12, 900e9, 8, 100e9),
        # Cloud TPU documentation, key specifications of each version; links are given both ways
        # there. v5e and v6e: 2D torus of 256 chips; v5p: 3D torus
        Chip("v5e", 16 * 10**9, 819e9, 197e12, 197e12, 200e9, 256, 0, torus=2),
        Chip("v5p", 95 * GIB, 2765e9, 459e12, 459e12, 600e9, 8960, 0, torus=3),
        Chip("v6e", 32 * 10**9, 1638e9, 918e12, 918e12, 400e9, 256, 0, torus=2),
        # TPU7x: a chip is two JAX devices; each row is half a chip
        Chip("v7x", 96 * GIB, 3690e9, 1153e12, 2307e12, 300e9, 18432, 0, torus=3),
    )
}
