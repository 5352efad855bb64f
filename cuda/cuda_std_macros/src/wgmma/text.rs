//! The instructions of one GEMM.
//!
//! A fence, one `wgmma.mma_async` for each 16 of K, and a commit. All of it is one `asm!` statement, because ptxas
//! serialises multiplications whose accumulator it sees touched in between.

use std::fmt::Write;

use super::form::{A_ROWS, Form, OperandA};

/// K dimension of one instruction for 16-bit operands.
pub const K_STEP: usize = 16;

/// One GEMM: 64 × `n` = 64 × `k` times `k` × `n`.
pub struct Gemm {
    pub form: Form,
    pub n: usize,
    pub k: usize,
    pub ptx_type: &'static str,
}

impl Gemm {
    /// Registers a thread holds of the accumulator.
    pub fn accumulators(&self) -> usize {
        self.n / 2
    }

    /// Registers a thread holds of A, where it lies in registers.
    pub fn a_registers(&self) -> usize {
        self.k / 4
    }

    /// The GEMM's text; the first step overwrites the accumulator unless it `accumulates`.
    ///
    /// Operands of the `asm!`: the accumulator, then A's registers, by number; `a` and `b`, descriptors, by name.
    pub fn text(&self, accumulates: bool) -> String {
        let Self { n, k, ptx_type, .. } = self;
        let accumulator = operands(0, self.accumulators());
        let immediates = self.immediates();
        let scale_zero = if accumulates {
            ""
        } else {
            ".reg .pred scale_zero; setp.ne.b32 scale_zero, 0, 0; "
        };
        let mut text = format!(
            "{{{{ .reg .b64 a, b; {scale_zero}.reg .pred scale_one; setp.eq.b32 scale_one, 0, 0; \
             wgmma.fence.sync.aligned;\n"
        );
        for step in 0..k / K_STEP {
            let b = if step == 0 { "{b}" } else { "b" };
            let scale_d = if step == 0 && !accumulates {
                "scale_zero"
            } else {
                "scale_one"
            };
            text += &self.advance(step);
            let _ = writeln!(
                text,
                "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{ptx_type}.{ptx_type} \
                 {accumulator}, {}, {b}, {scale_d}, {immediates};",
                self.a(step)
            );
        }
        text + "wgmma.commit_group.sync.aligned; }}"
    }

    /// The operand A of a step.
    fn a(&self, step: usize) -> String {
        match self.form.a {
            OperandA::Registers => operands(self.accumulators() + 4 * step, 4),
            OperandA::Shared(_) => (if step == 0 { "{a}" } else { "a" }).to_owned(),
        }
    }

    /// The PTX that moves the descriptors from the first step to this one.
    fn advance(&self, step: usize) -> String {
        if step == 0 {
            return String::new();
        }
        let b = self.form.b.offset(step, self.n);
        match self.form.a {
            OperandA::Registers => format!("add.s64 b, {{b}}, {b};\n"),
            OperandA::Shared(major) => {
                let a = major.offset(step, A_ROWS);
                format!("add.s64 a, {{a}}, {a}; add.s64 b, {{b}}, {b};\n")
            }
        }
    }

    /// `imm-scale-a, imm-scale-b`, which negate nothing, and the operands' `imm-trans`: A's exists in shared memory only.
    fn immediates(&self) -> String {
        let b = self.form.b.trans();
        match self.form.a {
            OperandA::Registers => format!("1, 1, {b}"),
            OperandA::Shared(major) => format!("1, 1, {}, {b}", major.trans()),
        }
    }
}

/// `{first}, {first + 1}, …` as `asm!` text.
pub fn list(first: usize, count: usize) -> String {
    let items: Vec<String> = (first..first + count).map(|i| format!("{{{i}}}")).collect();
    items.join(", ")
}

/// A vector operand of PTX: the list in braces.
fn operands(first: usize, count: usize) -> String {
    format!("{{{{ {} }}}}", list(first, count))
}
