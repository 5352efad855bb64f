//! Writing the directives that rustc cannot emit.

use crate::Error;
use crate::ptx::item::{Kind, items};

/// Launch geometry that every launch of a kernel obeys; recorded by `cuda_std`'s `#[launch_bounds]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchBounds {
    /// Threads in a block.
    pub threads: u32,
    /// Blocks an SM must be able to hold.
    pub min_blocks: u32,
    /// Blocks in a cluster; 1 is no cluster.
    pub cluster: u32,
}

/// Start of the comment that carries the bounds: `// cuda_std.launch_bounds NAME THREADS MIN_BLOCKS CLUSTER`.
const MARKER: &str = "// cuda_std.launch_bounds ";

/// Bytes of a `CUtensorMap` parameter. Larger alignments than 16 make rustc fail, and the hardware wants 64.
const TENSOR_MAP: &str = "[128]";

/// The bounds of every kernel that has them.
pub fn launch_bounds(ptx: &str) -> Result<Vec<(&str, LaunchBounds)>, Error> {
    ptx.lines()
        .filter_map(|line| line.trim().strip_prefix(MARKER))
        .map(|fields| {
            parse_bounds(fields).ok_or_else(|| Error::Ptx(format!("bad launch bounds {fields:?}")))
        })
        .collect()
}

fn parse_bounds(fields: &str) -> Option<(&str, LaunchBounds)> {
    let (name, numbers) = fields.split_once(' ')?;
    let numbers: Vec<u32> = numbers
        .split_whitespace()
        .map(|n| n.parse().ok())
        .collect::<Option<_>>()?;
    let [threads, min_blocks, cluster] = numbers[..] else {
        return None;
    };
    Some((
        name,
        LaunchBounds {
            threads,
            min_blocks,
            cluster,
        },
    ))
}

/// The module with every kernel's launch bounds and parameter alignments written out.
///
/// Launch bounds become `.maxntid`, `.minnctapersm` and for clusters `.explicitcluster` with
/// `.reqnctapercluster` (PTX ISA, "Performance-Tuning Directives", "Cluster Dimension Directives"). A
/// 128-byte parameter is a tensor map and is raised to 64-byte alignment.
pub fn finish(ptx: &str) -> Result<String, Error> {
    let bounds = launch_bounds(ptx)?;
    let mut finished = String::with_capacity(ptx.len());
    for item in items(ptx)? {
        match item.kind {
            Kind::Entry(name) => {
                let bounds = bounds
                    .iter()
                    .find(|(kernel, _)| *kernel == name)
                    .map(|(_, bounds)| *bounds);
                finished.push_str(&finish_entry(item.text, bounds)?);
            }
            Kind::Header | Kind::Symbol(_) => finished.push_str(item.text),
        }
        finished.push('\n');
    }
    Ok(finished)
}

fn finish_entry(text: &str, bounds: Option<LaunchBounds>) -> Result<String, Error> {
    let (declaration, body) = text
        .split_once('{')
        .ok_or_else(|| Error::Ptx("a kernel without a body".to_owned()))?;
    let mut result: String = declaration
        .lines()
        .map(|line| {
            let tensor_map = line.contains(".param .align 16 .b8") && line.contains(TENSOR_MAP);
            let line = if tensor_map {
                line.replace(".align 16", ".align 64")
            } else {
                line.to_owned()
            };
            line + "\n"
        })
        .collect();
    if let Some(LaunchBounds {
        threads,
        min_blocks,
        cluster,
    }) = bounds
    {
        result.push_str(&format!(
            ".maxntid {threads}, 1, 1\n.minnctapersm {min_blocks}\n"
        ));
        if cluster > 1 {
            result.push_str(&format!(
                ".explicitcluster\n.reqnctapercluster {cluster}, 1, 1\n"
            ));
        }
    }
    result.push('{');
    result.push_str(body);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = ".version 8.0\n.target sm_90a\n.address_size 64\n\
        // cuda_std.launch_bounds plain 256 2 1\n// cuda_std.launch_bounds paired 384 1 2\n\
        .visible .entry plain(\n\t.param .align 8 .b8 plain_param_0[40]\n)\n{\n\tret;\n}\n\
        .visible .entry paired(\n\t.param .align 16 .b8 paired_param_0[128],\n\t.param .align 16 .b8 paired_param_1[64]\n)\n{\n\tret;\n}\n\
        .visible .entry unbounded()\n{\n\tret;\n}\n";

    #[test]
    fn writes_bounds_and_alignments() {
        let finished = finish(PTX).unwrap();
        assert!(finished.contains(")\n.maxntid 256, 1, 1\n.minnctapersm 2\n{\n\tret;"));
        assert!(finished.contains(
            ")\n.maxntid 384, 1, 1\n.minnctapersm 1\n.explicitcluster\n.reqnctapercluster 2, 1, 1\n{"
        ));
        assert!(finished.contains(".param .align 64 .b8 paired_param_0[128]"));
        assert!(finished.contains(".param .align 16 .b8 paired_param_1[64]"));
        assert!(finished.contains(".param .align 8 .b8 plain_param_0[40]"));
        assert!(finished.contains("unbounded()\n{"));
    }

    #[test]
    fn refuses_a_garbled_marker() {
        assert!(finish("// cuda_std.launch_bounds k 256\n").is_err());
        assert!(finish("// cuda_std.launch_bounds k a b c\n").is_err());
    }
}
