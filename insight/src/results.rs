//! Measurements kept in `bench/results`: the raw JSON of `bench/side_by_side.py --json`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::gpu_spec::GpuSpec;
use ferroflash::DType;

/// One measured forward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// `ferroflash`, or the name of a peer.
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
    dtype: String,
    pub rows: Vec<Row>,
}

/// One shape: self-attention with as many heads of k and v as of q.
#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    /// `fwd` or `bwd`.
    pub what: String,
    /// head_dim.
    pub d: usize,
    pub seq: usize,
    pub causal: bool,
    pub batch: usize,
    pub heads: usize,
    /// ferroflash, if it ran.
    pub ours: Option<Times>,
    /// The other implementations that ran, by name.
    pub peers: BTreeMap<String, Times>,
}

/// Times of a call; `bench/README.md` says how they were taken.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
pub struct Times {
    /// Milliseconds of a call where calls follow each other without a pause.
    pub ms_sustained: f64,
    /// Milliseconds of a call in a burst after a pause.
    pub ms_burst: f64,
    /// Clock of the multiprocessors, MHz, while calls were sustained.
    pub clock_mhz: Option<f64>,
    /// Power of the board, watts, while calls were sustained.
    pub watts: Option<f64>,
}

/// Allowed values of `what`.
const PASSES: [&str; 2] = ["fwd", "bwd"];

impl SideBySide {
    /// Reads a file.
    ///
    /// # Errors
    /// The fault in words.
    pub fn load(path: &Path) -> Result<Self, String> {
        let file: Self =
            serde_json::from_str(&read_text(path)?).map_err(|error| error.to_string())?;
        file.check()?;
        Ok(file)
    }

    fn check(&self) -> Result<(), String> {
        if self.dtype().is_none() {
            return Err(format!("unknown dtype `{}`", self.dtype));
        }
        for (index, row) in self.rows.iter().enumerate() {
            row.check()
                .map_err(|wrong| format!("row {index}: {wrong}"))?;
        }
        Ok(())
    }

    /// Element type of every row; `None` if it is not one of ours.
    pub fn dtype(&self) -> Option<DType> {
        [DType::F32, DType::F16, DType::Bf16]
            .into_iter()
            .find(|dtype| dtype.name() == self.dtype)
    }
}

impl Row {
    fn check(&self) -> Result<(), String> {
        if [self.d, self.seq, self.batch, self.heads].contains(&0) {
            return Err("a size of 0".to_owned());
        }
        if !PASSES.contains(&self.what.as_str()) {
            return Err(format!("unknown pass `{}`", self.what));
        }
        for (who, times) in self.everybody() {
            for ms in [times.ms_sustained, times.ms_burst] {
                if !(ms.is_finite() && ms > 0.0) {
                    return Err(format!("{who} took {ms} ms"));
                }
            }
        }
        Ok(())
    }

    /// All implementations that ran, by name.
    fn everybody(&self) -> impl Iterator<Item = (&str, &Times)> {
        let ours = self.ours.iter().map(|times| (OURS, times));
        let peers = self.peers.iter().map(|(who, times)| (who.as_str(), times));
        ours.chain(peers)
    }

    /// FLOPs by the script's count: half of all pairs under a causal mask.
    fn flops(&self) -> f64 {
        let share = if self.causal { 0.5 } else { 1.0 };
        let passes = if self.what == "bwd" { 2.5 } else { 1.0 };
        let pairs = (self.batch * self.heads * self.seq * self.seq) as f64 * share;
        4.0 * pairs * self.d as f64 * passes
    }
}

/// This library's name among its peers.
const OURS: &str = "ferroflash";

/// The measurements of a folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    pub points: Vec<Point>,
    /// Files that are called JSON and are none, or hold what cannot be, with what is wrong with each.
    pub broken: Vec<(PathBuf, String)>,
}

/// The forward passes in `folder` without a mask that ran on a GPU like `gpu`; JSON of another form is left out.
pub fn read(folder: &Path, gpu: &GpuSpec, dtype: DType) -> Found {
    let mut found = Found::default();
    let Ok(entries) = fs::read_dir(folder) else {
        return found;
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<_> = paths.filter(|path| is_json(path)).collect();
    paths.sort();
    for path in paths {
        let file = match load_if_of_this_form(&path) {
            Ok(Some(file)) => file,
            Ok(None) => continue,
            Err(wrong) => {
                found.broken.push((path, wrong));
                continue;
            }
        };
        if gpu.is_called(&file.device) && file.dtype() == Some(dtype) {
            let rows = file.rows.iter();
            found.points.extend(rows.flat_map(|row| points(row, dtype)));
        }
    }
    found
}

fn is_json(path: &Path) -> bool {
    path.is_file()
        && path
            .extension()
            .is_some_and(|extension| extension == "json")
}

/// `None` if `path` holds other JSON.
fn load_if_of_this_form(path: &Path) -> Result<Option<SideBySide>, String> {
    let text = read_text(path)?;
    // To the end first: what is of another form may be broken behind the place that shows it.
    serde_json::from_str::<IgnoredAny>(&text).map_err(|error| error.to_string())?;
    match serde_json::from_str::<SideBySide>(&text) {
        Ok(file) => file.check().map(|()| Some(file)),
        Err(_) => Ok(None),
    }
}

fn read_text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| error.to_string())
}

fn points(row: &Row, dtype: DType) -> Vec<Point> {
    if row.what != "fwd" || row.causal {
        return Vec::new();
    }
    let row_bytes = 4 * row.d * dtype.bytes() + DType::F32.bytes();
    let bytes = (row.batch * row.heads * row.seq * row_bytes) as f64;
    let point = |(who, times): (&str, &Times)| Point {
        who: who.to_owned(),
        head_dim: row.d,
        intensity: row.flops() / bytes,
        flops: row.flops() / (times.ms_sustained / 1e3),
    };
    row.everybody().map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{"device": "NVIDIA H200", "date": "2026-11-21", "dtype": "bf16", "rows": [
        {"what": "fwd", "d": 64, "seq": 512, "causal": false, "batch": 2, "heads": 3, "dtype": "bf16",
         "ours": {"ms_sustained": 2.0, "ms_burst": 1.5, "clock_mhz": 1600.0, "watts": null, "tflops_burst": 1.0}, "old": null,
         "peers": {"cudnn": {"ms_sustained": 4.0, "ms_burst": 3.0}}, "ratios": {"peers_burst": 2.0}},
        {"what": "fwd", "d": 64, "seq": 512, "causal": true, "batch": 2, "heads": 3,
         "ours": {"ms_sustained": 2.0, "ms_burst": 1.5}, "peers": {}},
        {"what": "bwd", "d": 64, "seq": 512, "causal": false, "batch": 2, "heads": 3,
         "ours": null, "peers": {"cudnn": {"ms_sustained": 4.0, "ms_burst": 3.0}}}]}"#;

    #[test]
    fn points_of_the_same_gpu_and_dtype() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.json"), FILE).unwrap();
        fs::write(folder.path().join("b.json"), "[1, 2").unwrap();
        fs::write(folder.path().join("other.json"), "[1, 2]").unwrap();
        fs::write(folder.path().join("notes.txt"), "not a measurement").unwrap();
        let read = |gpu: &str, dtype| read(folder.path(), &gpu.parse().unwrap(), dtype);
        let Found { points, broken } = read("h200", DType::Bf16);
        let [(path, wrong)] = broken.as_slice() else {
            panic!("{broken:?}");
        };
        assert!(path.ends_with("b.json"), "{path:?}");
        assert!(wrong.starts_with("EOF while parsing a list"), "{wrong}");
        let who: Vec<_> = points.iter().map(|point| point.who.as_str()).collect();
        assert_eq!(who, ["ferroflash", "cudnn"], "neither causal nor backward");
        // 4·2·3·512²·64 FLOPs in 2 ms sustained, and in 4.
        assert_eq!(points[0].flops, 402_653_184.0 / 2e-3);
        assert_eq!(points[1].flops, 402_653_184.0 / 4e-3);
        // 4·512·64 FLOPs for 4·2·64 + 4 bytes of each row.
        assert_eq!(points[0].intensity, 131_072.0 / 516.0);
        assert_eq!(read("h100", DType::Bf16).points, []);
        assert_eq!(read("h200", DType::F16).points, []);
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
        assert_eq!(
            refused("\"batch\": 2", "\"batch\": 0"),
            "row 0: a size of 0"
        );
        assert_eq!(refused("fwd", "sideways"), "row 0: unknown pass `sideways`");
        assert_eq!(refused("1.5", "-1"), "row 0: ferroflash took -1 ms");
        assert_eq!(refused("4.0", "0"), "row 0: cudnn took 0 ms");
        assert!(refused("4.0", "null").starts_with("invalid type: null"));
        assert!(SideBySide::load(&folder.path().join("b.json")).is_err());
    }
}
