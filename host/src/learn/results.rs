//! Measurements kept in `bench/results`: the raw JSON of `bench/side_by_side.py --json`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::gpu_spec::GpuSpec;
use crate::DType;

/// One measured forward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// `ferroflash`, or the peer's name.
    pub who: String,
    /// FLOPs over the bytes of q, k, v, o and lse, each moved once.
    pub intensity: f64,
    /// FLOP/s.
    pub flops: f64,
}

/// A file: its rows, and what they were measured on.
#[derive(Deserialize)]
struct File {
    device: String,
    #[serde(default)]
    dtype: Option<String>,
    rows: Vec<Row>,
}

/// One shape, TFLOP/s.
#[derive(Deserialize)]
struct Row {
    d: f64,
    seq: f64,
    causal: bool,
    what: String,
    ours: f64,
    peers: BTreeMap<String, f64>,
}

/// The forward passes in `folder` that ran on a GPU like `gpu`; files of another form are left out.
pub fn read(folder: &Path, gpu: &GpuSpec, dtype: DType) -> Vec<Point> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.sort();
    let texts = paths
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok());
    texts
        .filter_map(|text| serde_json::from_str::<File>(&text).ok())
        .filter(|file| is_like(&file.device, gpu))
        .filter(|file| file.dtype.as_deref().unwrap_or("bf16") == dtype.name())
        .flat_map(|file| file.rows)
        .flat_map(|row| points(&row, dtype))
        .collect()
}

/// Whether a driver's name, as in `NVIDIA A100-SXM4-40GB`, is that of `gpu`, as in `a100-40g` or as the driver has it.
fn is_like(device: &str, gpu: &GpuSpec) -> bool {
    let device = device.to_lowercase();
    let name = gpu.name.to_lowercase();
    name.split('-').all(|part| device.contains(part))
}

fn points(row: &Row, dtype: DType) -> Vec<Point> {
    if row.what != "fwd" {
        return Vec::new();
    }
    let share = if row.causal { 0.5 } else { 1.0 };
    let flops = 4.0 * row.seq * row.seq * row.d * share;
    let bytes = row.seq * (4.0 * row.d * dtype.bytes() as f64 + DType::F32.bytes() as f64);
    let ours = [("ferroflash".to_owned(), row.ours)];
    let peers = row.peers.iter().map(|(who, tflops)| (who.clone(), *tflops));
    let all = ours.into_iter().chain(peers);
    all.filter(|(_, tflops)| *tflops > 0.0)
        .map(|(who, tflops)| Point {
            who,
            intensity: flops / bytes,
            flops: tflops * 1e12,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{"device": "NVIDIA H200", "date": "2026-11-21", "dtype": "bf16", "rows": [
        {"d": 64, "seq": 512, "causal": false, "what": "fwd", "ours": 450.0, "peers": {"cudnn": 400.0}, "ratio": 1.1},
        {"d": 64, "seq": 512, "causal": true, "what": "fwd", "ours": 300.0, "peers": {}, "ratio": 1.1},
        {"d": 64, "seq": 512, "causal": false, "what": "bwd", "ours": 0.0, "peers": {"cudnn": 300.0}, "ratio": 0.0}]}"#;

    #[test]
    fn points_of_the_same_gpu_and_dtype() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.json"), FILE).unwrap();
        fs::write(folder.path().join("b.json"), "[1, 2").unwrap();
        fs::write(folder.path().join("notes.txt"), "not a measurement").unwrap();
        let read = |gpu: &str, dtype| read(folder.path(), &gpu.parse().unwrap(), dtype);
        let points = read("h200", DType::Bf16);
        let who: Vec<_> = points.iter().map(|point| point.who.as_str()).collect();
        assert_eq!(who, ["ferroflash", "cudnn", "ferroflash"]);
        assert_eq!(points[0].flops, 450e12);
        // 4·512·64 FLOPs for 4·2·64 + 4 bytes of each row.
        assert_eq!(points[0].intensity, 131_072.0 / 516.0);
        assert_eq!(points[2].intensity, points[0].intensity / 2.0);
        assert_eq!(read("h100", DType::Bf16), []);
        assert_eq!(read("h200", DType::F16), []);
    }

    #[test]
    fn names_of_drivers() {
        let gpu: GpuSpec = "a100-40g".parse().unwrap();
        assert!(is_like("NVIDIA A100-SXM4-40GB", &gpu));
        assert!(!is_like("NVIDIA A100-SXM4-80GB", &gpu));
        let measured = GpuSpec {
            name: "NVIDIA A100-SXM4-40GB".to_owned(),
            ..gpu
        };
        assert!(is_like("NVIDIA A100-SXM4-40GB", &measured));
        assert!(!is_like("NVIDIA A100-SXM4-80GB", &measured));
    }
}
