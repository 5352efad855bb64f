//! Text of the warpgroup matrix multiplications: one `asm!` block a GEMM, for any shape.
//!
//! A GEMM is a fence, one `wgmma.mma_async` for each 16 of its K dimension, and a commit. All of it is one
//! `asm!` statement, because ptxas serialises multiplications whose accumulator it sees touched in between.

use std::fmt::Write;

use proc_macro2::{Ident, TokenStream as Tokens};
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{LitInt, Token, parenthesized};

/// K dimension of one instruction for 16-bit operands.
const K_STEP: usize = 16;
/// Elements of a 128-byte row, the width of a swizzled panel.
const PANEL_ELEMS: usize = 64;
/// Rows of A a warpgroup multiplies.
const A_ROWS: usize = 64;
/// Unit of the addresses in a matrix descriptor, in bytes.
const DESCRIPTOR_UNIT: usize = 16;
const PANEL_ROW_BYTES: usize = 128;

/// `kind: (n, k), (n, k), …;`
struct Family {
    kind: Ident,
    shapes: Vec<(usize, usize)>,
}

pub struct Families(Vec<Family>);

impl Parse for Families {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let mut families = Vec::new();
        while !input.is_empty() {
            let kind = input.parse()?;
            input.parse::<Token![:]>()?;
            let shapes = Punctuated::<Shape, Token![,]>::parse_separated_nonempty(input)?;
            input.parse::<Token![;]>()?;
            families.push(Family {
                kind,
                shapes: shapes.into_iter().map(|Shape(n, k)| (n, k)).collect(),
            });
        }
        Ok(Self(families))
    }
}

struct Shape(usize, usize);

impl Parse for Shape {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let pair;
        parenthesized!(pair in input);
        let n = pair.parse::<LitInt>()?.base10_parse()?;
        pair.parse::<Token![,]>()?;
        Ok(Self(n, pair.parse::<LitInt>()?.base10_parse()?))
    }
}

/// Implements the family's trait for every shape and both element types, and `InFlight` for every
/// accumulator.
pub fn expand(families: Families) -> syn::Result<Tokens> {
    let mut code = Tokens::new();
    let mut accumulators = Vec::new();
    for family in &families.0 {
        for &(n, k) in &family.shapes {
            for (element, ptx_type) in [("Bf16", "bf16"), ("F16", "f16")] {
                let element = format_ident!("{element}");
                let gemm = Gemm { n, k, ptx_type };
                code.extend(match family.kind.to_string().as_str() {
                    "scores_from_registers" => gemm.scores_from_registers(&element),
                    "scores_from_shared" => gemm.scores_from_shared(&element),
                    "output_from_registers" => gemm.output_from_registers(&element),
                    _ => return Err(syn::Error::new(family.kind.span(), "unknown kind of GEMM")),
                });
            }
            accumulators.push(n / 2);
        }
    }
    accumulators.sort_unstable();
    accumulators.dedup();
    code.extend(accumulators.into_iter().map(in_flight));
    Ok(code)
}

/// One GEMM: 64 × `n` = 64 × `k` times `k` × `n`.
struct Gemm {
    n: usize,
    k: usize,
    ptx_type: &'static str,
}

impl Gemm {
    /// Registers a thread holds of the accumulator.
    fn accumulators(&self) -> usize {
        self.n / 2
    }

    /// Registers a thread holds of A.
    fn a_registers(&self) -> usize {
        self.k / 4
    }

    /// Offset of k-step `step` in a K-major operand of `rows` rows, in descriptor units.
    fn k_major_offset(step: usize, rows: usize) -> usize {
        let steps_a_panel = PANEL_ELEMS / K_STEP;
        let in_panel = step % steps_a_panel * K_STEP * 2;
        let panel = step / steps_a_panel * rows * PANEL_ROW_BYTES;
        (in_panel + panel) / DESCRIPTOR_UNIT
    }

    /// Offset of k-step `step` in an MN-major operand, in descriptor units.
    fn mn_major_offset(step: usize) -> usize {
        step * K_STEP * PANEL_ROW_BYTES / DESCRIPTOR_UNIT
    }

    /// The GEMM's text. `a(step)` is the A operand and `advance(step)` what moves the descriptors there;
    /// the first step overwrites the accumulator where the predicate `first` is false.
    fn text(
        &self,
        first: &str,
        a: impl Fn(usize) -> String,
        advance: impl Fn(usize) -> String,
        immediates: &str,
    ) -> String {
        let Self { n, k, ptx_type } = self;
        let accumulator = operands(0, self.accumulators());
        let mut text = format!(
            "{{{{ .reg .b64 a, b; .reg .pred first, rest; setp.ne.b32 first, {first}, 0; \
             setp.eq.b32 rest, 0, 0; wgmma.fence.sync.aligned;\n"
        );
        for step in 0..k / K_STEP {
            let (b, scale_d) = if step == 0 {
                ("{b}", "first")
            } else {
                ("b", "rest")
            };
            if step > 0 {
                text += &advance(step);
            }
            let _ = writeln!(
                text,
                "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{ptx_type}.{ptx_type} \
                 {accumulator}, {}, {b}, {scale_d}, {immediates};",
                a(step)
            );
        }
        text + "wgmma.commit_group.sync.aligned; }}"
    }

    fn scores_from_registers(&self, element: &Ident) -> Tokens {
        let (acc, a) = (self.accumulators(), self.a_registers());
        let text = self.text(
            "0",
            |step| operands(acc + 4 * step, 4),
            |step| {
                let offset = Self::k_major_offset(step, self.n);
                format!("add.s64 b, {{b}}, {offset};\n")
            },
            "1, 1, 0",
        );
        let (acc_index, a_index) = (0..acc, 0..a);
        quote! {
            impl ScoresFromRegisters<#acc, #a> for #element {
                #[inline(always)]
                unsafe fn multiply(acc: &mut [f32; #acc], a: &[u32; #a], b: Descriptor) {
                    // SAFETY: forwarded to the caller.
                    unsafe {
                        ::core::arch::asm!(#text, #(out(reg32) acc[#acc_index],)*
                            #(in(reg32) a[#a_index],)* b = in(reg64) b.0, options(nostack));
                    }
                }
            }
        }
    }

    fn scores_from_shared(&self, element: &Ident) -> Tokens {
        let (acc, k) = (self.accumulators(), self.k);
        let text = self.text(
            "0",
            |step| (if step == 0 { "{a}" } else { "a" }).to_owned(),
            |step| {
                let a_offset = Self::k_major_offset(step, A_ROWS);
                let b_offset = Self::k_major_offset(step, self.n);
                format!("add.s64 a, {{a}}, {a_offset}; add.s64 b, {{b}}, {b_offset};\n")
            },
            "1, 1, 0, 0",
        );
        let acc_index = 0..acc;
        quote! {
            impl ScoresFromShared<#acc, #k> for #element {
                #[inline(always)]
                unsafe fn multiply(acc: &mut [f32; #acc], a: Descriptor, b: Descriptor) {
                    // SAFETY: forwarded to the caller.
                    unsafe {
                        ::core::arch::asm!(#text, #(out(reg32) acc[#acc_index],)*
                            a = in(reg64) a.0, b = in(reg64) b.0, options(nostack));
                    }
                }
            }
        }
    }

    fn output_from_registers(&self, element: &Ident) -> Tokens {
        let (acc, a) = (self.accumulators(), self.a_registers());
        let text = self.text(
            "{accumulate}",
            |step| operands(acc + 4 * step, 4),
            |step| {
                let offset = Self::mn_major_offset(step);
                format!("add.s64 b, {{b}}, {offset};\n")
            },
            "1, 1, 1",
        );
        let (acc_index, a_index) = (0..acc, 0..a);
        quote! {
            impl OutputFromRegisters<#acc, #a> for #element {
                #[inline(always)]
                unsafe fn multiply_add(
                    acc: &mut [f32; #acc],
                    a: &[u32; #a],
                    b: Descriptor,
                    accumulate: u32,
                ) {
                    // SAFETY: forwarded to the caller.
                    unsafe {
                        ::core::arch::asm!(#text, #(inout(reg32) acc[#acc_index],)*
                            #(in(reg32) a[#a_index],)* b = in(reg64) b.0,
                            accumulate = in(reg32) accumulate, options(nostack));
                    }
                }
            }
        }
    }
}

/// `{first}, {first + 1}, …` as `asm!` text.
fn list(first: usize, count: usize) -> String {
    let items: Vec<String> = (first..first + count).map(|i| format!("{{{i}}}")).collect();
    items.join(", ")
}

/// A vector operand of PTX: the list in braces.
fn operands(first: usize, count: usize) -> String {
    format!("{{{{ {} }}}}", list(first, count))
}

/// A wait that LLVM takes to write every register of the accumulator, so that no use moves above it.
fn in_flight(registers: usize) -> Tokens {
    let text = format!(
        "wgmma.wait_group.sync.aligned {{pending}}; // {}",
        list(0, registers)
    );
    let index = 0..registers;
    quote! {
        impl InFlight for [f32; #registers] {
            #[inline(always)]
            unsafe fn wait<const PENDING: u32>(&mut self) {
                // SAFETY: forwarded to the caller.
                unsafe {
                    ::core::arch::asm!(#text, #(inout(reg32) self[#index],)* pending = const PENDING,
                        options(nostack));
                }
            }
        }
    }
}
