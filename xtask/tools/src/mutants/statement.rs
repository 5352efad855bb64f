//! Statements of a PTX text, found by the instructions that the simulator decodes from it.

use std::ops::Range;

use ptx_sim::{KernelInfo, Module};

/// An instruction as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement<'t> {
    /// Place in the kernel's code.
    pub index: usize,
    /// 1-based line of the text.
    pub line: u32,
    /// Bytes of the text from the guard, if there is one, through the semicolon.
    pub span: Range<usize>,
    /// `@p ` or `@!p `, or nothing.
    pub guard: &'t str,
    pub opcode: &'t str,
    pub operands: Vec<&'t str>,
}

impl Statement<'_> {
    /// The statement with other operands, or with another opcode and guard.
    pub fn with(&self, guard: &str, opcode: &str, operands: &[&str]) -> String {
        let space = if operands.is_empty() { "" } else { " " };
        format!("{guard}{opcode}{space}{};", operands.join(", "))
    }

    /// Whether the opcode has `modifier`, which begins with its dot.
    pub fn has(&self, modifier: &str) -> bool {
        let name = modifier.trim_start_matches('.');
        self.opcode.split('.').any(|part| part == name)
    }

    pub fn mnemonic(&self) -> &str {
        self.opcode.split('.').next().unwrap_or_default()
    }

    /// The type that the opcode ends with.
    pub fn ty(&self) -> &str {
        self.opcode.rsplit('.').next().unwrap_or_default()
    }
}

/// The statements of the kernel in `text`, in the order of its code; the return that ends every body is left out.
pub fn of<'t>(text: &'t str, module: &Module) -> Vec<Statement<'t>> {
    let starts: Vec<usize> = std::iter::once(0)
        .chain(text.match_indices('\n').map(|(at, _)| at + 1))
        .collect();
    let code: Vec<_> = module
        .kernels()
        .next()
        .map(|kernel: KernelInfo<'_>| kernel.code().collect())
        .unwrap_or_default();
    let mut found = Vec::new();
    let mut behind = 0;
    for (index, instruction) in code.iter().enumerate().take(code.len().saturating_sub(1)) {
        let line_start = starts[instruction.line as usize - 1];
        let from = line_start.max(behind);
        let Some(opcode_at) = text[from..].find(instruction.opcode).map(|at| from + at) else {
            continue;
        };
        let Some(end) = text[opcode_at..].find(';').map(|at| opcode_at + at + 1) else {
            continue;
        };
        behind = end;
        // The guard is what stands between the end of the statement before and the opcode.
        let before = &text[line_start.max(from)..opcode_at];
        let guard = before.rfind('@').map_or("", |at| &before[at..]);
        let opcode_end = opcode_at + instruction.opcode.len();
        found.push(Statement {
            index,
            line: instruction.line,
            span: opcode_at - guard.len()..end,
            guard,
            opcode: &text[opcode_at..opcode_end],
            operands: operands(&text[opcode_end..end - 1]),
        });
    }
    found
}

/// The operands of a list: what commas outside of braces and brackets separate.
fn operands(list: &str) -> Vec<&str> {
    let mut depth = 0;
    let mut operands: Vec<_> = list
        .split(|c: char| {
            match c {
                '{' | '[' | '(' => depth += 1,
                '}' | ']' | ')' => depth -= 1,
                _ => {}
            }
            c == ',' && depth == 0
        })
        .map(str::trim)
        .collect();
    operands.retain(|operand| !operand.is_empty());
    operands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_found_where_they_are() {
        let text = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n\
            .reg .pred %p<2>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<3>;\n\
            \tld.param.b64 \t%rd1, [p];\n\
            \t{ .reg .b32 low, high; mov.b64 {low, high}, %rd1; add.s32 %r1, low, high; }\n\
            \tsetp.eq.b32 \t%p1, %r1, 0;\n$L1:\n\t@!%p1 bra \t$L1;\n\tret;\n}\n";
        let module = Module::parse(text).unwrap();
        let found = of(text, &module);
        let short: Vec<_> = found
            .iter()
            .map(|s| (s.line, s.guard, s.opcode, s.operands.clone()))
            .collect();
        assert_eq!(
            short,
            [
                (9, "", "ld.param.b64", vec!["%rd1", "[p]"]),
                (10, "", "mov.b64", vec!["{low, high}", "%rd1"]),
                (10, "", "add.s32", vec!["%r1", "low", "high"]),
                (11, "", "setp.eq.b32", vec!["%p1", "%r1", "0"]),
                (13, "@!%p1 ", "bra", vec!["$L1"]),
                (14, "", "ret", vec![]),
            ]
        );
        assert_eq!(&text[found[4].span.clone()], "@!%p1 bra \t$L1;");
        assert_eq!(found[4].with("@%p1 ", "bra", &["$L1"]), "@%p1 bra $L1;");
        assert!(found[2].has(".s32") && !found[2].has(".s"));
    }
}
