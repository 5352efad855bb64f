//! Ways to break one statement.

use super::statement::Statement;

/// What a mutation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Barriers, waits, fences, byte counts, parities, scopes.
    Synchronisation,
    /// Offsets, strides, coordinates, descriptors, guards of tails.
    Addressing,
    /// Signs, constants, comparisons and selections of numbers, accumulation.
    Arithmetic,
    /// Branches, loop bounds, what decides about them.
    Control,
}

impl Class {
    pub const ALL: [Self; 4] = [
        Self::Synchronisation,
        Self::Addressing,
        Self::Arithmetic,
        Self::Control,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Synchronisation => "synchronisation",
            Self::Addressing => "addressing",
            Self::Arithmetic => "arithmetic",
            Self::Control => "control",
        }
    }
}

/// A statement in a broken form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    pub class: Class,
    /// The way in which it is broken.
    pub operator: &'static str,
    /// What stands in place of the statement.
    pub broken: String,
}

/// Every way to break `statement`.
pub fn of(statement: &Statement<'_>) -> Vec<Mutation> {
    let mut breaker = Breaker {
        statement,
        found: Vec::new(),
    };
    breaker.synchronisation();
    breaker.memory();
    breaker.integers();
    breaker.numbers();
    breaker.matrices();
    breaker.control();
    breaker.found
}

struct Breaker<'s, 't> {
    statement: &'s Statement<'t>,
    found: Vec<Mutation>,
}

use Class::{Addressing, Arithmetic, Control, Synchronisation};

/// Instructions that order others, and are gone without a trace in registers.
const ORDERING: [&str; 14] = [
    "bar.sync",
    "bar.arrive",
    "bar.warp.sync",
    "barrier.cluster",
    "fence",
    "membar",
    "cp.async.wait",
    "cp.async.commit",
    "cp.async.bulk.wait",
    "cp.async.bulk.commit",
    "wgmma.fence",
    "wgmma.commit",
    "wgmma.wait",
    "mbarrier.arrive",
];

/// What weakens an order or a scope, from and to.
const WEAKER: [(&str, &str); 6] = [
    (".acquire.cluster", ".acquire.cta"),
    (".release.cluster", ".release.cta"),
    (".relaxed.gpu", ".relaxed.cta"),
    (".acquire", ".relaxed"),
    (".release", ".relaxed"),
    // A smaller scope: no fence orders less.
    (".acq_rel.gpu", ".acq_rel.cta"),
];

impl Breaker<'_, '_> {
    fn add(&mut self, class: Class, operator: &'static str, broken: String) {
        self.found.push(Mutation {
            class,
            operator,
            broken,
        });
    }

    /// The statement with `operand` in place of operand `at`.
    fn replace(&mut self, class: Class, operator: &'static str, at: usize, operand: &str) {
        let s = self.statement;
        let mut operands = s.operands.clone();
        operands[at] = operand;
        let broken = s.with(s.guard, s.opcode, &operands);
        self.add(class, operator, broken);
    }

    /// The statement with two operands in each other's place.
    fn swap(&mut self, class: Class, operator: &'static str, a: usize, b: usize) {
        let s = self.statement;
        let mut operands = s.operands.clone();
        if operands.len() > a.max(b) && operands[a] != operands[b] {
            operands.swap(a, b);
            self.add(class, operator, s.with(s.guard, s.opcode, &operands));
        }
    }

    fn opcode(&mut self, class: Class, operator: &'static str, opcode: &str) {
        let s = self.statement;
        self.add(class, operator, s.with(s.guard, opcode, &s.operands));
    }

    /// The statement behind one that computes `changed` from operand `at` by `instruction` (`add.s32 {to}, {from}, 1;`).
    fn compute(
        &mut self,
        class: Class,
        operator: &'static str,
        at: usize,
        (ty, instruction): (&str, &str),
    ) {
        let s = self.statement;
        let Some(&operand) = s.operands.get(at) else {
            return;
        };
        let compute = instruction
            .replace("{to}", "changed")
            .replace("{from}", operand);
        let mut operands = s.operands.clone();
        operands[at] = "changed";
        let rest = s.with(s.guard, s.opcode, &operands);
        self.add(
            class,
            operator,
            format!("{{ .reg .{ty} changed; {compute} {rest} }}"),
        );
    }

    fn synchronisation(&mut self) {
        let s = self.statement;
        let opcode = s.opcode;
        if ORDERING.iter().any(|name| opcode.starts_with(name)) {
            self.add(Synchronisation, "removed", String::new());
        }
        for (from, to) in WEAKER {
            // `fence.mbarrier_init` has one form.
            let is_fixed = ["ld.", "st.", "fence.mbarrier_init"];
            let is_fixed = is_fixed.iter().any(|name| opcode.starts_with(name));
            if opcode.contains(from) && !is_fixed {
                self.opcode(Synchronisation, "weakened", &opcode.replacen(from, to, 1));
                break;
            }
        }
        if opcode.contains("wait_group")
            && let Some(pending) = s.operands.first().and_then(|n| n.parse::<u32>().ok())
        {
            let more = (pending + 1).to_string();
            self.replace(Synchronisation, "waits for one less", 0, &more);
        }
        if opcode.starts_with("mbarrier.init") {
            let add = ("b32", "add.s32 {to}, {from}, 1;");
            self.compute(Synchronisation, "counts one more", 1, add);
        }
        if opcode.contains("expect_tx") {
            let add = ("b32", "add.s32 {to}, {from}, 16;");
            self.compute(Synchronisation, "expects more bytes", 2, add);
            let sub = ("b32", "sub.s32 {to}, {from}, 16;");
            self.compute(Synchronisation, "expects fewer bytes", 2, sub);
        }
        if opcode.contains("try_wait.parity") {
            // Every other lane's alone: lanes that each have a block would swap them, and reach the same ones.
            let other = (
                "b32",
                "mov.u32 {to}, %laneid; not.b32 {to}, {to}; and.b32 {to}, {to}, 1; xor.b32 {to}, {to}, {from};",
            );
            self.compute(Synchronisation, "the other parity", 2, other);
            let done = format!("setp.eq.b32 {}, 0, 0;", s.operands[0]);
            self.add(Synchronisation, "does not wait", done);
        }
        if let (true, Some(count)) = (
            opcode.starts_with("bar.sync") || opcode.starts_with("bar.arrive"),
            s.operands.get(1).and_then(|n| n.parse::<u32>().ok()),
        ) {
            let more = (count + 32).to_string();
            self.replace(Synchronisation, "counts a warp more", 1, &more);
        }
        if opcode.starts_with("setmaxnreg")
            && let Some(count) = s.operands.first().and_then(|n| n.parse::<u32>().ok())
        {
            let fewer = (count - 8).to_string();
            self.replace(Synchronisation, "fewer registers", 0, &fewer);
            self.add(Synchronisation, "removed", String::new());
        }
    }

    fn memory(&mut self) {
        let s = self.statement;
        let is_prefetch = s.mnemonic().starts_with("prefetch");
        for (at, operand) in s.operands.iter().enumerate().filter(|_| !is_prefetch) {
            let Some(inner) = operand.strip_prefix('[').and_then(|o| o.strip_suffix(']')) else {
                continue;
            };
            if let Some((map, coordinates)) = inner.split_once(',') {
                let list = coordinates.trim().trim_matches(['{', '}']);
                self.coordinates(at, map, list);
                continue;
            }
            let step = if s.opcode.starts_with("ld.param") {
                8
            } else {
                16
            };
            let (base, offset) = match inner.rsplit_once('+') {
                Some((base, offset)) => (base, offset.trim().parse().unwrap_or(0)),
                None => (inner, 0),
            };
            let moved = format!("[{}+{}]", base.trim(), offset + step);
            self.replace(Addressing, "offset", at, &moved);
        }
        if !s.guard.is_empty() && s.mnemonic() != "bra" {
            let negated = negated(s.guard);
            let broken = s.with(&negated, s.opcode, &s.operands);
            self.add(Addressing, "guard negated", broken);
            let broken = s.with("", s.opcode, &s.operands);
            self.add(Addressing, "guard removed", broken);
        }
        if s.opcode.starts_with("mapa") {
            // Not the block beside it: where each lane asks for one, lanes would but change places.
            let other = ("b32", "add.u32 {to}, {from}, 1;");
            self.compute(Addressing, "another block of the cluster", 2, other);
        }
        if s.opcode.contains(".multicast") {
            let fewer = ("b16", "shr.u16 {to}, {from}, 1;");
            self.compute(Addressing, "multicast to fewer", 3, fewer);
        }
        if s.opcode.starts_with("cp.async.c") && s.operands.len() == 4 {
            self.replace(Addressing, "copies the whole", 3, s.operands[2]);
        }
    }

    /// Coordinates of a tensor copy: two in each other's place, one moved.
    fn coordinates(&mut self, at: usize, map: &str, list: &str) {
        let coordinates: Vec<_> = list.split(',').map(str::trim).collect();
        for i in 1..coordinates.len() {
            let mut swapped = coordinates.clone();
            swapped.swap(i - 1, i);
            if swapped != coordinates {
                let operand = format!("[{map}, {{{}}}]", swapped.join(", "));
                self.replace(Addressing, "coordinates swapped", at, &operand);
            }
            let mut zero = coordinates.clone();
            zero[i] = "0";
            let operand = format!("[{map}, {{{}}}]", zero.join(", "));
            self.replace(Addressing, "coordinate 0", at, &operand);
        }
    }

    fn integers(&mut self) {
        let s = self.statement;
        let is_integer = matches!(
            s.ty(),
            "s16" | "u16" | "b16" | "s32" | "u32" | "b32" | "s64" | "u64" | "b64"
        );
        if !is_integer {
            return;
        }
        let other = |from: &str, to: &str| s.opcode.replacen(from, to, 1);
        match s.mnemonic() {
            "add" => self.opcode(Addressing, "add → sub", &other("add", "sub")),
            "sub" => self.opcode(Addressing, "sub → add", &other("sub", "add")),
            "and" => self.opcode(Addressing, "and → or", &other("and", "or")),
            "or" => self.opcode(Addressing, "or → and", &other("or", "and")),
            "xor" => self.opcode(Addressing, "xor → or", &other("xor", "or")),
            "min" => self.opcode(Addressing, "min → max", &other("min", "max")),
            "max" => self.opcode(Addressing, "max → min", &other("max", "min")),
            "mad" => self.replace(Addressing, "nothing added", 3, "0"),
            "mul" | "shl" | "shr" | "bfe" => {}
            "selp" => return self.swap(Addressing, "selects the other", 1, 2),
            _ => return,
        }
        for at in 1..s.operands.len() {
            if let Ok(value) = s.operands[at].parse::<i64>() {
                let more = if value == -1 { 1 } else { value + 1 };
                self.replace(Addressing, "constant", at, &more.to_string());
            }
        }
    }

    fn numbers(&mut self) {
        let s = self.statement;
        for at in 1..s.operands.len() {
            let Some(bits) = s.operands[at].strip_prefix("0f") else {
                continue;
            };
            let Ok(bits) = u32::from_str_radix(bits, 16) else {
                continue;
            };
            // The next exponent doubles; in place of 0, which has none, stands 1.
            let larger = match f32::from_bits(bits) {
                0.0 => 1.0_f32.to_bits(),
                _ => bits.wrapping_add(1 << f32::MANTISSA_DIGITS.saturating_sub(1)),
            };
            for (operator, changed) in [
                ("constant negated", bits ^ (1 << 31)),
                ("constant enlarged", larger),
            ] {
                if f32::from_bits(bits) != f32::from_bits(changed) {
                    self.replace(Arithmetic, operator, at, &format!("0f{changed:08X}"));
                }
            }
        }
        if s.opcode.starts_with("cvt.rn") && s.has("f32") && s.operands.len() == 3 {
            self.swap(Arithmetic, "halves swapped", 1, 2);
        }
        if s.opcode.starts_with("shfl.sync.bfly")
            && let Some(mask) = s.operands.get(2).and_then(|m| m.parse::<u32>().ok())
        {
            let other = if mask == 1 { 2 } else { mask / 2 };
            self.replace(Arithmetic, "another lane", 2, &other.to_string());
        }
        if s.opcode.starts_with("redux") && s.has("max") {
            let min = s.opcode.replacen("max", "min", 1);
            self.opcode(Arithmetic, "max → min", &min);
        }
        if s.ty() != "f32" {
            return;
        }
        let other = |from: &str, to: &str| s.opcode.replacen(from, to, 1);
        let negate = ("f32", "neg.f32 {to}, {from};");
        match s.mnemonic() {
            "add" => self.opcode(Arithmetic, "add → sub", &other("add", "sub")),
            "sub" => self.opcode(Arithmetic, "sub → add", &other("sub", "add")),
            "max" => self.opcode(Arithmetic, "max → min", &other("max", "min")),
            "min" => self.opcode(Arithmetic, "min → max", &other("min", "max")),
            "mul" | "div" => self.compute(Arithmetic, "sign", 1, negate),
            "fma" => {
                self.compute(Arithmetic, "sign", 1, negate);
                self.compute(Arithmetic, "sign of what is added", 3, negate);
            }
            "ex2" | "lg2" | "rcp" | "abs" | "neg" | "sqrt" | "rsqrt" => {
                let mov = s.with(s.guard, "mov.f32", &s.operands);
                self.add(Arithmetic, "left out", mov);
            }
            "copysign" => self.swap(Arithmetic, "operands swapped", 1, 2),
            "selp" => self.swap(Arithmetic, "selects the other", 1, 2),
            "setp" => self.comparison(Arithmetic),
            _ => {}
        }
    }

    fn matrices(&mut self) {
        let s = self.statement;
        if s.opcode.starts_with("mma.sync") {
            let list = |at: usize| -> Vec<&str> {
                let inner = s.operands[at].trim_matches(['{', '}']);
                inner.split(',').map(str::trim).collect()
            };
            for at in [1, 2, 3] {
                let mut elements = list(at);
                if elements.len() > 1 && elements[0] != elements[1] {
                    elements.swap(0, 1);
                    let operand = format!("{{{}}}", elements.join(", "));
                    self.replace(Arithmetic, "fragment swapped", at, &operand);
                }
            }
        }
        if s.opcode.starts_with("wgmma.mma_async") {
            for at in 1..s.operands.len() {
                let operand = s.operands[at];
                match operand {
                    "scale_zero" => self.replace(Arithmetic, "accumulate flag", at, "scale_one"),
                    "scale_one" => {
                        self.compute(
                            Arithmetic,
                            "accumulate flag",
                            at,
                            ("pred", "not.pred {to}, {from};"),
                        );
                    }
                    "0" | "1" if at + 2 >= s.operands.len() => {
                        let other = if operand == "0" { "1" } else { "0" };
                        self.replace(Addressing, "operand transposed", at, other);
                    }
                    "1" => self.replace(Arithmetic, "sign", at, "-1"),
                    _ if at <= 2 && !operand.starts_with('{') => {
                        let next = ("b64", "add.s64 {to}, {from}, 2;");
                        self.compute(Addressing, "descriptor", at, next);
                    }
                    _ => {}
                }
            }
        }
    }

    fn control(&mut self) {
        let s = self.statement;
        let other = |from: &str, to: &str| s.opcode.replacen(from, to, 1);
        match s.mnemonic() {
            "bra" if !s.guard.is_empty() => {
                // The loop around a wait that may return early.
                let class = match s.operands.first() {
                    Some(&"WAIT") => return self.add(Synchronisation, "asked once", String::new()),
                    _ => Control,
                };
                let broken = s.with(&negated(s.guard), s.opcode, &s.operands);
                self.add(class, "branch negated", broken);
                self.add(class, "branch never taken", String::new());
                let broken = s.with("", s.opcode, &s.operands);
                self.add(class, "branch always taken", broken);
            }
            "bra" => self.add(Control, "jump removed", String::new()),
            "setp" if s.ty() != "f32" => {
                self.comparison(Control);
                if let Some(bound) = s.operands.get(2).and_then(|n| n.parse::<i64>().ok()) {
                    let more = (bound + 1).to_string();
                    self.replace(Control, "bound", 2, &more);
                }
            }
            "and" if s.ty() == "pred" => self.opcode(Control, "and → or", &other("and", "or")),
            "or" if s.ty() == "pred" => self.opcode(Control, "or → and", &other("or", "and")),
            "not" if s.ty() == "pred" => {
                self.opcode(Control, "not left out", &other("not", "mov"));
            }
            _ => {}
        }
    }

    /// A comparison that is true at equality where it was not, or the contrary of what it was.
    fn comparison(&mut self, class: Class) {
        const OTHERS: [(&str, &str); 12] = [
            (".lt.", ".le."),
            (".le.", ".lt."),
            (".gt.", ".ge."),
            (".ge.", ".gt."),
            (".eq.", ".ne."),
            (".ne.", ".eq."),
            (".equ.", ".neu."),
            (".neu.", ".equ."),
            (".ltu.", ".leu."),
            (".leu.", ".ltu."),
            (".gtu.", ".geu."),
            (".geu.", ".gtu."),
        ];
        let opcode = self.statement.opcode;
        if let Some((from, to)) = OTHERS.iter().find(|(from, _)| opcode.contains(from)) {
            self.opcode(class, "comparison", &opcode.replacen(from, to, 1));
        }
    }
}

/// The other guard.
fn negated(guard: &str) -> String {
    match guard.strip_prefix("@!") {
        Some(rest) => format!("@{rest}"),
        None => guard.replacen('@', "@!", 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_text(guard: &str, opcode: &str, operands: &[&str]) -> Vec<(Class, &'static str, String)> {
        let statement = Statement {
            index: 0,
            line: 1,
            span: 0..0,
            guard,
            opcode,
            operands: operands.to_vec(),
        };
        let found = of(&statement).into_iter();
        found.map(|m| (m.class, m.operator, m.broken)).collect()
    }

    #[test]
    fn every_class_breaks_what_is_its_own() {
        let found = of_text("", "bar.sync", &["%r1", "256"]);
        assert_eq!(found[0], (Synchronisation, "removed", String::new()));
        assert_eq!(
            found[1],
            (
                Synchronisation,
                "counts a warp more",
                "bar.sync %r1, 288;".into()
            )
        );
        let found = of_text("", "ld.param.b64", &["%rd1", "[k_param_0+8]"]);
        let moved = "ld.param.b64 %rd1, [k_param_0+16];".into();
        assert_eq!(found, [(Addressing, "offset", moved)]);
        let found = of_text("", "fma.rn.f32", &["%r1", "%r2", "0f3F800000", "%r3"]);
        let names: Vec<_> = found.iter().map(|(_, name, _)| *name).collect();
        assert_eq!(
            names,
            [
                "constant negated",
                "constant enlarged",
                "sign",
                "sign of what is added"
            ]
        );
        assert_eq!(
            found[3].2,
            "{ .reg .f32 changed; neg.f32 changed, %r3; fma.rn.f32 %r1, %r2, 0f3F800000, changed; }"
        );
        let found = of_text("@!%p1 ", "bra", &["$L1"]);
        let broken: Vec<_> = found.iter().map(|(.., broken)| broken.as_str()).collect();
        assert_eq!(broken, ["@%p1 bra $L1;", "", "bra $L1;"]);
        assert!(found.iter().all(|(class, ..)| *class == Control));
        let found = of_text("", "setp.lt.s32", &["%p1", "%r1", "4"]);
        let broken: Vec<_> = found.iter().map(|(.., broken)| broken.as_str()).collect();
        assert_eq!(
            broken,
            ["setp.le.s32 %p1, %r1, 4;", "setp.lt.s32 %p1, %r1, 5;"]
        );
    }

    /// Into fences that there are: what does not parse tells nothing of the tests.
    #[test]
    fn fences_are_weakened_where_there_is_a_weaker_one() {
        let broken = |opcode| {
            let found = of_text("", opcode, &[]);
            found
                .into_iter()
                .map(|(.., broken)| broken)
                .collect::<Vec<_>>()
        };
        assert_eq!(broken("fence.acq_rel.gpu"), ["", "fence.acq_rel.cta;"]);
        assert_eq!(broken("fence.mbarrier_init.release.cluster"), [""]);
        let of_atom = broken("atom.acq_rel.gpu.global.inc.u32");
        assert!(of_atom.contains(&"atom.acq_rel.cta.global.inc.u32;".to_owned()));
    }

    #[test]
    fn tensor_copies_and_products_are_broken_by_operand() {
        let found = of_text(
            "",
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes",
            &["[%r1]", "[%rd1, {%r2, %r3, %r3, %r4}]", "[%r5]"],
        );
        let swapped = found
            .iter()
            .filter(|(_, name, _)| *name == "coordinates swapped");
        assert_eq!(swapped.count(), 2);
        let found = of_text(
            "",
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16",
            &["{%r1, %r2}", "a", "b", "scale_zero", "1", "1", "1", "0"],
        );
        let names: Vec<_> = found.iter().map(|(_, name, _)| *name).collect();
        let wanted = [
            "descriptor",
            "descriptor",
            "accumulate flag",
            "sign",
            "sign",
            "operand transposed",
            "operand transposed",
        ];
        assert_eq!(names, wanted);
    }

    #[test]
    fn what_does_nothing_is_not_broken() {
        assert_eq!(of_text("", "prefetch.tensormap", &["[%rd1]"]), []);
        assert_eq!(of_text("", "ret", &[]), []);
        // −0 is as good as 0.
        let found = of_text("", "add.rn.f32", &["%r1", "%r2", "0f00000000"]);
        let names: Vec<_> = found.iter().map(|(_, name, _)| *name).collect();
        assert_eq!(names, ["constant enlarged", "add → sub"]);
    }
}
