//! What other tests execute.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use kernels_gpu::instances;
use ptx_sim::Coverage;

/// What tests beside the corpus execute, by kernel.
#[derive(Default)]
pub struct Beside(BTreeMap<&'static str, Coverage>);

impl Beside {
    /// Unites what `cargo xtask coverage` has recorded in `folder`, but of tests whose names contain one of `without` and of those that
    /// draw their problems.
    ///
    /// # Errors
    /// A file that cannot be read, or is none of a recording.
    pub fn read(folder: &Path, without: &[String]) -> Result<Self, Box<dyn Error>> {
        let (mut recorded, mut drawing) = (Vec::new(), Vec::new());
        for file in fs::read_dir(folder)? {
            let path = file?.path();
            let text = fs::read_to_string(&path)?;
            match path.extension().is_some_and(|of| of == "draws") {
                true => drawing.push(text),
                false => recorded.push(text),
            }
        }
        let mut beside = Self::default();
        for text in &recorded {
            let mut lines = text.lines();
            let (program, test) = (lines.next().unwrap_or_default(), lines.next());
            let test = test.ok_or("a recording without a test")?;
            let draws = drawing.contains(&format!("{program}\n{test}\n"));
            if !draws && !without.iter().any(|part| test.contains(part)) {
                lines.try_for_each(|line| beside.add(line))?;
            }
        }
        Ok(beside)
    }

    /// Adds a line about a kernel: its name, warp instructions, and the coverage.
    fn add(&mut self, line: &str) -> Result<(), Box<dyn Error>> {
        let mut fields = line.split(' ');
        let kernel = fields.next().and_then(instances::find);
        let coverage = fields.nth(1).ok_or("a line without coverage")?;
        if let Some(kernel) = kernel {
            let of_kernel = self.0.entry(kernel.name).or_default();
            of_kernel.add(&coverage.parse()?);
        }
        Ok(())
    }

    /// Each kernel, and what is executed of it.
    pub fn kernels(&self) -> impl Iterator<Item = (&'static str, &Coverage)> {
        self.0.iter().map(|(kernel, coverage)| (*kernel, coverage))
    }
}
