//! The generator of warpgroup matrix multiplications: one `asm!` block a GEMM, for any form and shape.
//!
//! | file | what it does |
//! |---|---|
//! | `form` | where operands lie, and what follows from it for descriptors and immediates |
//! | `text` | the instructions of one GEMM |
//! | `tests` | runs that text, in every form, in the simulator |

mod form;
#[cfg(test)]
mod tests;
mod text;

use proc_macro2::{Ident, TokenStream as Tokens};
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{LitInt, Token, parenthesized};

use form::{Form, OperandA};
use text::{Gemm, list};

/// `form: (n, k), (n, k), …;`
struct Family {
    form: Form,
    shapes: Vec<(usize, usize)>,
}

pub struct Families(Vec<Family>);

impl Parse for Families {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let mut families = Vec::new();
        while !input.is_empty() {
            let form = input.parse()?;
            input.parse::<Token![:]>()?;
            let shapes = Punctuated::<Shape, Token![,]>::parse_separated_nonempty(input)?;
            input.parse::<Token![;]>()?;
            families.push(Family {
                form,
                shapes: shapes.into_iter().map(|Shape(n, k)| (n, k)).collect(),
            });
        }
        Ok(Self(families))
    }
}

/// `(n, k)`, which the instruction has: n a multiple of 8 up to 256, k of 16.
struct Shape(usize, usize);

impl Parse for Shape {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let pair;
        parenthesized!(pair in input);
        let n: LitInt = pair.parse()?;
        pair.parse::<Token![,]>()?;
        let k: LitInt = pair.parse()?;
        let shape = Self(n.base10_parse()?, k.base10_parse()?);
        if !(8..=256).contains(&shape.0) || !shape.0.is_multiple_of(8) {
            return Err(syn::Error::new(n.span(), "n is a multiple of 8 up to 256"));
        }
        if shape.1 == 0 || !shape.1.is_multiple_of(text::K_STEP) {
            return Err(syn::Error::new(k.span(), "k is a multiple of 16"));
        }
        Ok(shape)
    }
}

/// Implements the form's trait for every shape and both element types, and `InFlight` for every
/// accumulator.
pub fn expand(families: &Families) -> Tokens {
    let mut code = Tokens::new();
    let mut accumulators = Vec::new();
    for &Family { form, ref shapes } in &families.0 {
        for &(n, k) in shapes {
            for (element, ptx_type) in [("Bf16", "bf16"), ("F16", "f16")] {
                let gemm = Gemm {
                    form,
                    n,
                    k,
                    ptx_type,
                };
                code.extend(implementation(&gemm, &format_ident!("{element}")));
            }
            accumulators.push(n / 2);
        }
    }
    accumulators.sort_unstable();
    accumulators.dedup();
    code.extend(accumulators.into_iter().map(in_flight));
    code
}

/// The trait of `gemm`'s form, for `element`.
fn implementation(gemm: &Gemm, element: &Ident) -> Tokens {
    let (acc, k) = (gemm.accumulators(), gemm.k);
    let major_b = gemm.form.b.marker(gemm.n);
    let (of_trait, a_type, a_operands) = match gemm.form.a {
        OperandA::Registers => {
            let count = gemm.a_registers();
            let index = 0..count;
            (
                quote!(GemmRs<#major_b, #acc, #count>),
                quote!(&[u32; #count]),
                quote!(#(in(reg32) a[#index],)*),
            )
        }
        OperandA::Shared(major) => {
            let major_a = major.marker(form::A_ROWS);
            (
                quote!(GemmSs<#major_a, #major_b, #acc, #k>),
                quote!(Descriptor<#major_a>),
                quote!(a = in(reg64) a.0,),
            )
        }
    };
    let (overwrite, accumulate) = (gemm.text(false), gemm.text(true));
    let (out_index, inout_index) = (0..acc, 0..acc);
    quote! {
        impl #of_trait for #element {
            #[inline(always)]
            unsafe fn multiply(acc: &mut [f32; #acc], a: #a_type, b: Descriptor<#major_b>) {
                // SAFETY: the trait's contract, for which the caller vouches, is the instruction's.
                unsafe {
                    ::core::arch::asm!(#overwrite, #(out(reg32) acc[#out_index],)*
                        #a_operands b = in(reg64) b.0, options(nostack));
                }
            }

            #[inline(always)]
            unsafe fn multiply_add(acc: &mut [f32; #acc], a: #a_type, b: Descriptor<#major_b>) {
                // SAFETY: the trait's contract, for which the caller vouches, is the instruction's.
                unsafe {
                    ::core::arch::asm!(#accumulate, #(inout(reg32) acc[#inout_index],)*
                        #a_operands b = in(reg64) b.0, options(nostack));
                }
            }
        }
    }
}

/// A wait that LLVM takes to write every register of the accumulator, so that no use moves above it; and that without the wait.
fn in_flight(registers: usize) -> Tokens {
    let written = format!("// {}", list(0, registers));
    let wait = format!("wgmma.wait_group.sync.aligned {{pending}}; {written}");
    let (wait_index, index) = (0..registers, 0..registers);
    quote! {
        impl InFlight for [f32; #registers] {
            #[inline(always)]
            unsafe fn wait<const PENDING: u32>(&mut self) {
                // SAFETY: the trait's contract, for which the caller vouches, is the instruction's.
                unsafe {
                    ::core::arch::asm!(#wait, #(inout(reg32) self[#wait_index],)* pending = const PENDING,
                        options(nostack));
                }
            }

            #[inline(always)]
            unsafe fn waited(&mut self) {
                // SAFETY: the text is a comment.
                unsafe {
                    ::core::arch::asm!(#written, #(inout(reg32) self[#index],)* options(nostack));
                }
            }
        }
    }
}
