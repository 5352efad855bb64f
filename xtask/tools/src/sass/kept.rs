//! Operands that products keep in registers through a loop, and what overwrites them.
//!
//! ptxas 13.0 once gave P's and dS's fragments the registers of Q and dO, which the next round of the loop read again: the PTX, and
//! so the simulator, was right, and the GPU was not.

use std::collections::BTreeSet;

use super::graph::{Blocks, Graph};

/// Registers of a left operand of `HGMMA`: 64 rows of 16 numbers of 16 bits.
const OPERAND_REGISTERS: u32 = 4;

/// Mnemonics whose first register is one that they read; and `LDSM`, by which a loop reads an operand again.
const NO_WRITES: [&str; 8] = ["ST", "STS", "STG", "STL", "STSM", "RED", "REDG", "LDSM"];

/// Instructions of a loop that overwrite a left operand of one of its products, of those whose right operand is not transposed:
/// the scores', whose rows stay while the loop passes over the other side.
pub fn overwrites(graph: &Graph, blocks: &Blocks) -> u32 {
    let instructions = || blocks.iter().flat_map(|&block| &graph.blocks[block]);
    let mut kept = BTreeSet::new();
    for instruction in instructions().filter(|of| of.mnemonic == "HGMMA") {
        if let [_, left, right, ..] = instruction.operands()[..]
            && !right.contains(".tnspB")
            && let Some(first) = register(left)
        {
            kept.extend(first..first + OPERAND_REGISTERS);
        }
    }
    let overwrites = instructions().filter(|instruction| {
        let mnemonic = instruction.mnemonic.as_str();
        let written = instruction.operands().first().copied().and_then(register);
        let is_write = mnemonic != "HGMMA" && !NO_WRITES.contains(&mnemonic);
        is_write
            && written.is_some_and(|first| {
                let mut registers = first..first + instruction.width();
                registers.any(|register| kept.contains(&register))
            })
    });
    overwrites.count() as u32
}

/// The number of `R12` or `R12.reuse`; `None` for other operands.
fn register(operand: &str) -> Option<u32> {
    let number = operand.strip_prefix('R')?;
    number.split('.').next()?.parse().ok()
}
