//! Data-sheet figures of GPUs.

use std::str::FromStr;

use serde::Serialize;

use ferroflash::{DType, Error};

/// Peak rates of a GPU: by its data sheet, dense rates without sparsity at boost clock, or [measured](super::probe).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GpuSpec {
    /// The name `--device` takes, or that of the driver if the rates were measured.
    pub name: String,
    /// Whether the rates were measured.
    pub measured: bool,
    /// Rate of bf16 and f16 tensor-core products with f32 accumulation, FLOP/s.
    pub tensor_flops: f64,
    /// Rate of f32 arithmetic on CUDA cores, FLOP/s.
    pub f32_flops: f64,
    /// Rate of `ex2.approx`, results per second.
    pub exps: f64,
    /// Bandwidth of device memory, bytes per second.
    pub bandwidth: f64,
    /// Shared memory of an SM, bytes: the limit on a tile of FlashAttention.
    pub shared_bytes: u64,
    /// Major and minor compute capability.
    pub compute_capability: (u32, u32),
}

/// Results of `ex2.approx` an SM gives each clock on every architecture here (CUDA C++ Programming Guide,
/// "Throughput of Native Arithmetic Instructions").
const EXPS_PER_CLOCK: f64 = 16.0;

/// A row of the table, in the data sheet's units.
struct Row {
    name: &'static str,
    tensor_tflops: f64,
    /// Tensor-core FLOPs of an SM each clock, 16-bit inputs.
    tensor_flops_per_clock: f64,
    f32_tflops: f64,
    gb_per_s: f64,
    shared_kib: u64,
    compute_capability: (u32, u32),
}

/// NVIDIA's data sheets and architecture white papers: A100 (2020), H100 SXM5 (2022), H200 SXM (2023), HGX B200
/// (2024). Figures with sparsity are halved.
const TABLE: [Row; 5] = [
    Row {
        name: "a100-40g",
        tensor_tflops: 312.0,
        tensor_flops_per_clock: 2048.0,
        f32_tflops: 19.5,
        gb_per_s: 1555.0,
        shared_kib: 164,
        compute_capability: (8, 0),
    },
    Row {
        name: "a100-80g",
        tensor_tflops: 312.0,
        tensor_flops_per_clock: 2048.0,
        f32_tflops: 19.5,
        gb_per_s: 2039.0,
        shared_kib: 164,
        compute_capability: (8, 0),
    },
    Row {
        name: "h100",
        tensor_tflops: 989.4,
        tensor_flops_per_clock: 4096.0,
        f32_tflops: 66.9,
        gb_per_s: 3350.0,
        shared_kib: 228,
        compute_capability: (9, 0),
    },
    Row {
        name: "h200",
        tensor_tflops: 989.4,
        tensor_flops_per_clock: 4096.0,
        f32_tflops: 66.9,
        gb_per_s: 4800.0,
        shared_kib: 228,
        compute_capability: (9, 0),
    },
    Row {
        name: "b200",
        tensor_tflops: 2250.0,
        tensor_flops_per_clock: 8192.0,
        f32_tflops: 75.0,
        gb_per_s: 8000.0,
        shared_kib: 228,
        compute_capability: (10, 0),
    },
];

impl Row {
    fn spec(&self) -> GpuSpec {
        let tensor_flops = self.tensor_tflops * 1e12;
        GpuSpec {
            name: self.name.to_owned(),
            measured: false,
            tensor_flops,
            f32_flops: self.f32_tflops * 1e12,
            // Both rates are per SM and clock, so neither the clock nor the number of SMs matters.
            exps: tensor_flops * (EXPS_PER_CLOCK / self.tensor_flops_per_clock),
            bandwidth: self.gb_per_s * 1e9,
            shared_bytes: self.shared_kib * 1024,
            compute_capability: self.compute_capability,
        }
    }
}

impl GpuSpec {
    /// The names of the table.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TABLE.iter().map(|row| row.name)
    }

    /// The GPU of the table that a driver calls `device`.
    pub fn of_device(device: &str) -> Option<Self> {
        let mut specs = TABLE.iter().map(Row::spec);
        specs.find(|spec| spec.is_called(device))
    }

    /// Whether a driver's name, as in `NVIDIA A100-SXM4-40GB`, is that of this GPU, as in `a100-40g` or as the driver has
    /// it.
    pub fn is_called(&self, device: &str) -> bool {
        let device = device.to_lowercase();
        let name = self.name.to_lowercase();
        name.split('-').all(|part| device.contains(part))
    }

    /// Rate of the units that multiply elements of `dtype`, FLOP/s: CUDA cores for f32, which ferroflash does
    /// not round to TF32, tensor cores otherwise.
    pub fn peak_flops(&self, dtype: DType) -> f64 {
        match dtype {
            DType::F32 => self.f32_flops,
            // e4m3 is widened before it is multiplied.
            DType::F16 | DType::Bf16 | DType::E4m3 => self.tensor_flops,
        }
    }

    /// FLOPs a byte from which on arithmetic, not memory, limits a kernel.
    pub fn ridge(&self, dtype: DType) -> f64 {
        self.peak_flops(dtype) / self.bandwidth
    }
}

impl FromStr for GpuSpec {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let row = TABLE.iter().find(|row| row.name == name);
        row.map(Row::spec).ok_or_else(|| {
            let names: Vec<_> = Self::names().collect();
            Error::argument(
                "device",
                format!("unknown GPU `{name}`"),
                format!("one of {}", names.join(", ")),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ridge_of_an_a100() {
        let gpu: GpuSpec = "a100-40g".parse().unwrap();
        assert_eq!(gpu.ridge(DType::Bf16).round(), 201.0);
        // 108 SMs at 1.41 GHz.
        assert!((gpu.exps / (108.0 * 16.0 * 1.41e9) - 1.0).abs() < 1e-3);
    }

    #[test]
    fn names_of_drivers() {
        let gpu: GpuSpec = "a100-40g".parse().unwrap();
        assert!(gpu.is_called("NVIDIA A100-SXM4-40GB"));
        assert!(!gpu.is_called("NVIDIA A100-SXM4-80GB"));
        let measured = GpuSpec {
            name: "NVIDIA A100-SXM4-40GB".to_owned(),
            ..gpu
        };
        assert!(measured.is_called("NVIDIA A100-SXM4-40GB"));
        assert!(!measured.is_called("NVIDIA A100-SXM4-80GB"));
        let name = |device| GpuSpec::of_device(device).map(|gpu| gpu.name);
        assert_eq!(name("NVIDIA A100-SXM4-80GB").unwrap(), "a100-80g");
        assert_eq!(name("NVIDIA H200").unwrap(), "h200");
        assert_eq!(name("NVIDIA GeForce RTX 4090"), None);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_names() {
        let message = "h1000".parse::<GpuSpec>().unwrap_err().to_string();
        assert_eq!(
            message,
            "device: unknown GPU `h1000`; one of a100-40g, a100-80g, h100, h200, b200"
        );
    }
}
