//! Checks of the machine code: matrix products in the main loop, no access to local memory there, and no operand overwritten that
//! the loop keeps.
//!
//! ptxas reports spills of a whole kernel. A register that is spilled once a tile costs nothing that can be measured;
//! one that is read back with every block of keys does.

mod graph;
mod kept;
mod loops;

use anyhow::Context;
use cuda_builder::manifest::MainLoops;
use kernels_gpu::instances::{Family, Instance, Operation};

use graph::Graph;

/// The matrix instruction by which a kernel's main loop is recognised; `None` for kernels that use none.
pub fn matrix_instruction(instance: &Instance) -> Option<&'static str> {
    match instance.operation {
        Operation::Forward
        | Operation::BackwardKeys
        | Operation::BackwardQueries
        | Operation::BackwardSplitKeys
        | Operation::BackwardSplitQueries
        | Operation::BackwardFused => {}
        _ => return None,
    }
    match instance.family {
        Family::Wgmma => Some("HGMMA"),
        Family::Mma => Some("HMMA"),
        Family::Simt => None,
    }
}

/// Mnemonics of loads from and stores to local memory.
const LOCAL: [&str; 2] = ["LDL", "STL"];

/// The main loops in the control flow that nvdisasm drew: those that contain `instruction`, except a loop around
/// others, which goes over tiles.
pub fn main_loops(dot: &str, instruction: &str) -> anyhow::Result<MainLoops> {
    let graph = Graph::parse(dot).context("nvdisasm's output")?;
    let mut loops = loops::natural(&graph)?;
    loops.retain(|blocks| graph.count(blocks, &[instruction]) > 0);
    let main = loops::without_outermost(&loops);
    Ok(MainLoops {
        instruction: instruction.to_owned(),
        count: graph.count(&main, &[instruction]),
        local_accesses: graph.count(&main, &LOCAL),
        overwrites: kept::overwrites(&graph, &main),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop over tiles around one over blocks, with a way around a rescaling, as nvdisasm draws them.
    const KERNEL: &str = r#"digraph f {
subgraph "cluster_k" {
node [fontname="Courier",fontsize=10,shape=Mrecord];
"k"
[label="{<entry>	.global		k\l	.type		k,@function\lk:\l.text.k:\l\ \ LDC\ R1,\ c\[0x0\]\[0x28\]\ ;\l\ \ STL\ \[R1\],\ R0\ ;\l}"]
"k":entry:s -> ".L_x_0":entry:n [style=solid];
node [fontname="Courier",fontsize=10,shape=Mrecord];
".L_x_0"
[label="{<entry>.L_x_0:\l\ \ LDL.64\ R2,\ \[R1\]\ ;\l\ \ HGMMA.64x128x16.F32\ R24,\ gdesc\[UR8\],\ RZ,\ !UPT\ ;\l}"]
".L_x_0":entry:s -> ".L_x_1":entry:n [style=solid];
".L_x_1"
[label="{<entry>.L_x_1:\l\ \ HGMMA.64x128x16.F32\ R24,\ gdesc\[UR8\],\ R24\ ;\l\ \ HGMMA.64x64x16.F32\ R88,\ R148,\ gdesc\[UR8\].tnspB,\ R88,\ gsb0\ ;\l|<exit0>\ \ @!P2\ BRA\ `(.L_x_2)\ ;\l}"]
".L_x_1":exit0:e -> ".L_x_2":entry:n [style=solid];
".L_x_1":exit0:s -> "BB0":entry:n [style=solid];
"BB0"
[label="{<entry>\ \ FMUL\ R24,\ R24,\ R2\ ;\l}"]
"BB0":entry:s -> ".L_x_2":entry:n [style=solid];
".L_x_2"
[label="{<entry>.L_x_2:\l\ \ MUFU.EX2\ R3,\ R4\ ;\l|<exit0>\ \ @P0\ BRA\ `(.L_x_1)\ ;\l}"]
".L_x_2":exit0:e -> ".L_x_1":entry:n [style=solid];
".L_x_2":exit0:s -> "BB1":entry:n [style=solid];
"BB1"
[label="{<entry>\ \ @P1\ STL\ \[R1+0x4\],\ R0\ ;\l|<exit0>\ \ @P1\ BRA\ `(.L_x_0)\ ;\l}"]
"BB1":exit0:e -> ".L_x_0":entry:n [style=solid];
"BB1":exit0:s -> "BB2":entry:n [style=solid];
"BB2"
[label="{<entry>\ \ EXIT\ ;\l}"]
"$__internal_0"
[label="{<entry>$__internal_0:\l\ \ LDL\ R2,\ \[R1\]\ ;\l\ \ RET.REL.NODEC\ R2\ `(k)\ ;\l}"]
}
}
"#;

    fn found(dot: &str, instruction: &str) -> (u32, u32) {
        let loops = main_loops(dot, instruction).unwrap();
        (loops.count, loops.local_accesses)
    }

    #[test]
    fn spills_count_in_the_main_loop_alone() {
        assert_eq!(found(KERNEL, "HGMMA"), (2, 0));
        // On the branch around the rescaling, under a predicate, and behind the products.
        for (from, to) in [
            (
                r"\ \ FMUL\ R24",
                r"\ \ LDL.LU\ R5,\ \[R1\]\ ;\l\ \ FMUL\ R24",
            ),
            (
                r"\ \ MUFU.EX2",
                r"\ \ @!P3\ STL\ \[R1\],\ R3\ ;\l\ \ MUFU.EX2",
            ),
        ] {
            assert!(KERNEL.contains(from));
            assert_eq!(found(&KERNEL.replace(from, to), "HGMMA"), (2, 1), "{to}");
        }
    }

    #[test]
    fn products_count_in_loops_alone() {
        assert_eq!(found(KERNEL, "HMMA"), (0, 0));
        // Without the inner branch back, the loop over tiles is the innermost one left.
        let unrolled = KERNEL.replace(
            r#"".L_x_2":exit0:e -> ".L_x_1""#,
            r#"".L_x_2":exit0:e -> "BB1""#,
        );
        assert_eq!(found(&unrolled, "HGMMA"), (3, 2));
        let straight =
            unrolled.replace(r#""BB1":exit0:e -> ".L_x_0""#, r#""BB1":exit0:e -> "BB2""#);
        assert_eq!(found(&straight, "HGMMA"), (0, 0));
    }

    #[test]
    fn operands_that_a_loop_keeps_are_not_overwritten() {
        let overwrites = |dot: &str| main_loops(dot, "HGMMA").unwrap().overwrites;
        // Scores of a row that stays in registers 148 to 151; the other product is of what the loop computes.
        let scores = KERNEL.replace(".tnspB", "");
        for (kernel, writes, found) in [
            (KERNEL, r"\ \ FMUL\ R149,\ R2,\ R2\ ;\l", 0),
            (&scores, r"\ \ FMUL\ R152,\ R2,\ R2\ ;\l", 0),
            (&scores, r"\ \ ST.E\ R149,\ R2\ ;\l", 0),
            (&scores, r"\ \ FMUL\ R149,\ R2,\ R2\ ;\l", 1),
            (&scores, r"\ \ @!P1\ LDS.128\ R148,\ \[UR4\]\ ;\l", 1),
            (&scores, r"\ \ IMAD.WIDE.U32\ R147,\ P0,\ R2,\ R2\ ;\l", 1),
            (&scores, r"\ \ IADD3\ P0,\ R150,\ R2,\ R2\ ;\l", 1),
        ] {
            let at = r"\ \ MUFU.EX2";
            let kernel = kernel.replace(at, &format!("{writes}{at}"));
            assert_eq!(overwrites(&kernel), found, "{writes}");
        }
        // Behind the loop they may be.
        let behind = scores.replace(r"\ \ EXIT", r"\ \ FMUL\ R149,\ R2,\ R2\ ;\l\ \ EXIT");
        assert_eq!(overwrites(&behind), 0);
    }

    #[test]
    fn what_cannot_be_judged_is_an_error() {
        // A second entry into the loop, past its head.
        let entered = KERNEL.replace(
            r#""k":entry:s -> ".L_x_0""#,
            r#""k":entry:e -> "BB0":entry:n;
"k":entry:s -> ".L_x_0""#,
        );
        assert!(main_loops(&entered, "HGMMA").is_err());
        assert!(main_loops(&KERNEL.replace(r#"> "BB0""#, r#"> "BB9""#), "HGMMA").is_err());
        assert!(main_loops("digraph f {}", "HGMMA").is_err());
    }
}
