//! The points measured by a sweep, and the files that keep them.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use ferroflash::Variant;
use ferroflash_insight::sweep_plot::{self, Line};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::output::Output;
use crate::say::say;
use crate::words::counted;

/// One measurement.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Point {
    /// Text that describes everything about the problem except its length.
    pub case: String,
    /// Our variant, or [`PEER`].
    pub variant: String,
    pub batch: usize,
    pub seq: usize,
    /// Our kernel, or the peer.
    pub kernel: String,
    /// This field and those below are as in [`Report`](crate::bench::report::Report).
    pub ms_sustained: f64,
    pub ms_burst: f64,
    pub clock_mhz: Option<f64>,
    pub watts: Option<f64>,
    pub tflops: f64,
    pub gbs: f64,
    /// These two of ours only.
    #[serde(default)]
    pub workspace_bytes: Option<u64>,
    #[serde(default)]
    pub peak_bytes: Option<u64>,
    pub device: String,
}

/// The variant of a peer's point.
pub const PEER: &str = "peer";

/// The points of a folder.
pub struct Points {
    folder: PathBuf,
    /// Held for the lifetime of this value: a second sweep would lose this one's points, and disturb its times.
    _lock: File,
    points: Vec<Point>,
}

const JSON: &str = "sweep.json";

fn refused(path: &Path, error: &dyn fmt::Display) -> Failure {
    Failure::refused(
        "--sweep",
        format!("{}: {error}", path.display()),
        "a writable folder, empty or with an earlier sweep",
    )
}

/// Locks the folder itself, so that no lock file is left in it.
fn lock(folder: &Path) -> Result<File, Failure> {
    let file = File::open(folder).map_err(|error| refused(folder, &error))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let wrong = format!("{}: another sweep is writing to it", folder.display());
            let allowed = "another folder, or wait until that one is done";
            return Err(Failure::refused("--sweep", wrong, allowed));
        }
        // Some network file systems lock no folders.
        Err(TryLockError::Error(error)) => {
            let folder = folder.display();
            say!("{folder} cannot be locked ({error}): let no other sweep write to it");
        }
    }
    Ok(file)
}

impl Points {
    /// Reads the points of an earlier sweep; creates the folder, with no points, if it does not exist.
    pub fn open(folder: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(folder).map_err(|error| refused(folder, &error))?;
        let lock = lock(folder)?;
        let path = folder.join(JSON);
        let mut points = Vec::new();
        if path.exists() {
            let text = fs::read_to_string(&path).map_err(|error| refused(&path, &error))?;
            points = serde_json::from_str(&text).map_err(|error| refused(&path, &error))?;
        }
        let folder = folder.to_owned();
        Ok(Self {
            folder,
            _lock: lock,
            points,
        })
    }

    /// Whether there is a point of this variant, problem and device.
    pub fn know(
        &self,
        case: &str,
        batch: usize,
        seq: usize,
        variant: Variant,
        device: &str,
    ) -> bool {
        self.points.iter().any(|point| {
            (point.case.as_str(), point.batch, point.seq) == (case, batch, seq)
                && (point.variant.as_str(), point.device.as_str()) == (variant.name(), device)
        })
    }

    /// Adds `point`, replacing an older one of the same kernel on the same problem and device.
    pub fn put(&mut self, point: Point) {
        self.points.retain(|old| {
            let same_line = line_of(old) == line_of(&point);
            !(same_line && (old.batch, old.seq) == (point.batch, point.seq))
        });
        self.points.push(point);
    }

    /// Writes all files. If the program is stopped meanwhile, each file is whole, either the old or the new one.
    pub fn write(&self) -> Result<(), Failure> {
        let json = serde_json::to_string_pretty(&self.points).expect("plain numbers and strings");
        for (name, text) in [
            (JSON, json + "\n"),
            ("sweep.csv", self.csv()),
            ("sweep.svg", self.svg()),
        ] {
            let path = self.folder.join(name);
            Output::create("--sweep", &path)?.persist(text.as_bytes())?;
        }
        Ok(())
    }

    fn csv(&self) -> String {
        let mut csv =
            "device,kernel,variant,case,batch,seq,ms_sustained,ms_burst,clock_mhz,watts,tflops,gbs,workspace_bytes,peak_bytes\n"
                .to_owned();
        for point in &self.points {
            let number = |value: Option<f64>| value.map(|value| value.to_string());
            let bytes = |value: Option<u64>| value.map(|value| value.to_string());
            let cells = [
                quoted(&point.device),
                quoted(&point.kernel),
                point.variant.clone(),
                quoted(&point.case),
                point.batch.to_string(),
                point.seq.to_string(),
                point.ms_sustained.to_string(),
                point.ms_burst.to_string(),
                number(point.clock_mhz).unwrap_or_default(),
                number(point.watts).unwrap_or_default(),
                point.tflops.to_string(),
                point.gbs.to_string(),
                bytes(point.workspace_bytes).unwrap_or_default(),
                bytes(point.peak_bytes).unwrap_or_default(),
            ];
            csv += &cells.join(",");
            csv.push('\n');
        }
        csv
    }

    fn svg(&self) -> String {
        let lines = self.lines();
        let mut title = "Forward attention".to_owned();
        if let [case] = self.distinct(|point| &point.case).as_slice() {
            title += &format!(", {case}");
        }
        if let [device] = self.distinct(|point| &point.device).as_slice() {
            title += &format!(", {device}");
        }
        sweep_plot::draw(&title, &lines)
    }

    /// The distinct values of a column.
    fn distinct(&self, column: impl Fn(&Point) -> &String) -> Vec<&String> {
        let mut values = Vec::new();
        for value in self.points.iter().map(column) {
            if !values.contains(&value) {
                values.push(value);
            }
        }
        values
    }

    /// One line for each kernel or peer on each device and case. A device or case that all share is in the title.
    fn lines(&self) -> Vec<Line> {
        let one_device = self.distinct(|point| &point.device).len() == 1;
        let one_case = self.distinct(|point| &point.case).len() == 1;
        let mut lines: Vec<(_, Line)> = Vec::new();
        for point in &self.points {
            let key = line_of(point);
            let place = (point.seq, point.tflops);
            if let Some((_, line)) = lines.iter_mut().find(|(known, _)| *known == key) {
                line.points.push(place);
                continue;
            }
            let mut who = point.kernel.clone();
            if !one_device {
                who += &format!(" on {}", point.device);
            }
            if !one_case {
                who += &format!(", {}", point.case);
            }
            let points = vec![place];
            lines.push((key, Line { who, points }));
        }
        // Ours first, whenever the peers were added.
        lines.sort_by_key(|((_, variant, ..), _)| *variant == PEER);
        let mut lines: Vec<_> = lines.into_iter().map(|(_, line)| line).collect();
        for line in &mut lines {
            line.points.sort_by_key(|point| point.0);
        }
        lines
    }
}

/// Key that all points of a line share.
fn line_of(point: &Point) -> (&str, &str, &str, &str) {
    let Point {
        case,
        variant,
        kernel,
        device,
        ..
    } = point;
    (case, variant, kernel, device)
}

/// A cell of CSV that may hold commas and quotes.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

impl fmt::Display for Points {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} in {}",
            counted(self.points.len(), "point"),
            self.folder.display()
        )
    }
}
