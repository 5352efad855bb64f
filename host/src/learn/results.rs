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
    pub head_dim: usize,
    /// FLOPs over the bytes of q, k, v, o and lse, each moved once.
    pub intensity: f64,
    /// FLOP/s.
    pub flops: f64,
}

/// A run of `bench/side_by_side.py --json`: ferroflash and its peers on the same shapes, one after the other.
#[derive(Clone, Debug, Deserialize)]
pub struct SideBySide {
    /// The GPU's name, as its driver has it.
    pub device: String,
    dtype: Option<String>,
    /// Queries of all sequences together: the batch is as many sequences of a length as make that many, 1 at least.
    #[serde(default = "default_tokens")]
    pub tokens: usize,
    /// Components of a token in all heads together.
    #[serde(default = "default_hidden")]
    pub hidden: usize,
    pub rows: Vec<Row>,
}

/// Defaults of the script, which its first files do not repeat.
const fn default_tokens() -> usize {
    16_384
}
const fn default_hidden() -> usize {
    2048
}

/// One shape: self-attention with as many heads of k and v as of q.
#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    /// head_dim.
    pub d: usize,
    pub seq: usize,
    pub causal: bool,
    /// `fwd` or `bwd`.
    pub what: String,
    /// ferroflash's TFLOP/s; 0 if it did not run.
    pub ours: f64,
    /// TFLOP/s of everybody else who ran.
    pub peers: BTreeMap<String, f64>,
}

/// What `what` may say.
const PASSES: [&str; 2] = ["fwd", "bwd"];

impl SideBySide {
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
        let file: Self = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        file.check()?;
        Ok(file)
    }

    fn check(&self) -> Result<(), String> {
        if self.dtype().is_none() {
            let dtype = self.dtype.as_deref().unwrap_or_default();
            return Err(format!("unknown dtype `{dtype}`"));
        }
        if self.tokens == 0 || self.hidden == 0 {
            return Err("0 tokens or a hidden size of 0".to_owned());
        }
        for (index, row) in self.rows.iter().enumerate() {
            row.check()
                .map_err(|wrong| format!("row {index}: {wrong}"))?;
        }
        Ok(())
    }

    /// Element type of every row; `None` if it is not one of ours.
    pub fn dtype(&self) -> Option<DType> {
        let name = self.dtype.as_deref().unwrap_or(DType::Bf16.name());
        [DType::F32, DType::F16, DType::Bf16]
            .into_iter()
            .find(|dtype| dtype.name() == name)
    }

    /// Sequences and heads of `row`.
    pub fn batch_heads(&self, row: &Row) -> (usize, usize) {
        ((self.tokens / row.seq).max(1), self.hidden / row.d)
    }
}

impl Row {
    fn check(&self) -> Result<(), String> {
        if self.d == 0 || self.seq == 0 {
            return Err("a size of 0".to_owned());
        }
        if !PASSES.contains(&self.what.as_str()) {
            return Err(format!("unknown pass `{}`", self.what));
        }
        let is_rate = |tflops: f64| tflops.is_finite() && tflops > 0.0;
        if self.ours != 0.0 && !is_rate(self.ours) {
            return Err(format!("ours is {} TFLOP/s", self.ours));
        }
        match self.peers.iter().find(|(_, tflops)| !is_rate(**tflops)) {
            Some((who, tflops)) => Err(format!("{who} is {tflops} TFLOP/s")),
            None => Ok(()),
        }
    }

    /// FLOPs of a head of a sequence by the script's count: half of all pairs under a causal mask.
    pub fn flops(&self) -> f64 {
        let share = if self.causal { 0.5 } else { 1.0 };
        let passes = if self.what == "bwd" { 2.5 } else { 1.0 };
        4.0 * (self.seq * self.seq * self.d) as f64 * share * passes
    }
}

/// The forward passes in `folder` without a mask that ran on a GPU like `gpu`; files of another form are left out.
pub fn read(folder: &Path, gpu: &GpuSpec, dtype: DType) -> Vec<Point> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.sort();
    let files = paths.iter().filter_map(|path| SideBySide::load(path).ok());
    files
        .filter(|file| gpu.is_called(&file.device) && file.dtype() == Some(dtype))
        .flat_map(|file| file.rows)
        .flat_map(|row| points(&row, dtype))
        .collect()
}

fn points(row: &Row, dtype: DType) -> Vec<Point> {
    if row.what != "fwd" || row.causal {
        return Vec::new();
    }
    let row_bytes = 4 * row.d * dtype.bytes() + DType::F32.bytes();
    let bytes = (row.seq * row_bytes) as f64;
    let flops = row.flops();
    let ours = [("ferroflash".to_owned(), row.ours)];
    let peers = row.peers.iter().map(|(who, tflops)| (who.clone(), *tflops));
    let all = ours.into_iter().chain(peers);
    all.filter(|(_, tflops)| *tflops > 0.0)
        .map(|(who, tflops)| Point {
            who,
            head_dim: row.d,
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
        assert_eq!(who, ["ferroflash", "cudnn"], "neither causal nor backward");
        assert_eq!(points[0].flops, 450e12);
        // 4·512·64 FLOPs for 4·2·64 + 4 bytes of each row.
        assert_eq!(points[0].intensity, 131_072.0 / 516.0);
        assert_eq!(read("h100", DType::Bf16), []);
        assert_eq!(read("h200", DType::F16), []);
    }

    #[test]
    fn files_that_cannot_be_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let refused = |from: &str, to: &str| {
            assert!(FILE.contains(from), "{from}");
            fs::write(&path, FILE.replacen(from, to, 1)).unwrap();
            SideBySide::load(&path).unwrap_err()
        };
        assert!(refused("\"rows\"", "\"lines\"").starts_with("missing field `rows`"));
        assert_eq!(refused("bf16", "fp8"), "unknown dtype `fp8`");
        assert_eq!(refused("\"seq\": 512", "\"seq\": 0"), "row 0: a size of 0");
        assert_eq!(refused("fwd", "sideways"), "row 0: unknown pass `sideways`");
        assert_eq!(refused("450.0", "-1"), "row 0: ours is -1 TFLOP/s");
        assert_eq!(refused("400.0", "0"), "row 0: cudnn is 0 TFLOP/s");
        assert!(refused("400.0", "null").starts_with("invalid type: null"));
        assert!(SideBySide::load(&folder.path().join("b.json")).is_err());
    }

    #[test]
    fn sizes_that_a_file_leaves_out_are_the_scripts() {
        let file: SideBySide = serde_json::from_str(FILE).unwrap();
        assert_eq!(file.batch_heads(&file.rows[0]), (32, 32));
    }
}
