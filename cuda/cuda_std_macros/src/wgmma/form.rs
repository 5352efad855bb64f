//! Where a GEMM's operands lie, and along which dimension.

use proc_macro2::{Ident, TokenStream as Tokens};
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::{LitInt, Token, parenthesized};

use super::text::K_STEP;

/// Elements of a 128-byte row, the width of a swizzled atom column.
const ATOM_COLS: usize = 64;
const PANEL_ROW_BYTES: usize = 128;
const ELEM_BYTES: usize = 2;
/// Unit of the addresses in a matrix descriptor, in bytes.
const DESCRIPTOR_UNIT: usize = 16;
/// Rows of A a warpgroup multiplies: the M of the instruction.
pub const A_ROWS: usize = 64;

/// Along which dimension an operand in shared memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Major {
    /// Along K; of atom columns with so many rows, or with the operand's own.
    K { atom_column_rows: Option<usize> },
    /// Along M or N.
    Mn,
}

impl Major {
    /// The type that stands for it in `cuda_std::wgmma`, of an operand with `rows` rows where it lies along K.
    pub fn marker(self, rows: usize) -> Tokens {
        match self {
            Self::K {
                atom_column_rows: None,
            } => quote!(KMajor),
            Self::K {
                atom_column_rows: Some(atom_column_rows),
            } => {
                assert!(
                    atom_column_rows >= rows,
                    "an atom column holds the operand's rows"
                );
                quote!(KMajorOf<#atom_column_rows>)
            }
            Self::Mn => quote!(MnMajor),
        }
    }

    /// How far k-step `step` lies from the first, in descriptor units, in an operand with `rows` rows where it lies along
    /// K.
    pub fn offset(self, step: usize, rows: usize) -> usize {
        let bytes = match self {
            Self::K { atom_column_rows } => {
                let steps_a_column = ATOM_COLS / K_STEP;
                let in_column = step % steps_a_column * K_STEP * ELEM_BYTES;
                let atom_column_bytes = atom_column_rows.unwrap_or(rows) * PANEL_ROW_BYTES;
                in_column + step / steps_a_column * atom_column_bytes
            }
            Self::Mn => step * K_STEP * PANEL_ROW_BYTES,
        };
        bytes / DESCRIPTOR_UNIT
    }

    /// The immediate `imm-trans`: 1 for MN-major.
    pub fn trans(self) -> u8 {
        match self {
            Self::K { .. } => 0,
            Self::Mn => 1,
        }
    }
}

/// Where A lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandA {
    Registers,
    Shared(Major),
}

/// Where A and B lie; B always in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    pub a: OperandA,
    pub b: Major,
}

/// `k`, `k of 128` or `mn`.
impl Parse for Major {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let major: Ident = input.parse()?;
        if major == "mn" {
            return Ok(Self::Mn);
        }
        if major != "k" {
            return Err(syn::Error::new(major.span(), "an operand is `k` or `mn`"));
        }
        if !input.peek(syn::Ident) {
            return Ok(Self::K {
                atom_column_rows: None,
            });
        }
        let of: Ident = input.parse()?;
        if of != "of" {
            return Err(syn::Error::new(of.span(), "expected `k of ROWS`"));
        }
        let atom_column_rows = input.parse::<LitInt>()?.base10_parse()?;
        Ok(Self::K {
            atom_column_rows: Some(atom_column_rows),
        })
    }
}

/// `rs(B)` or `ss(A, B)`.
impl Parse for Form {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let sources: Ident = input.parse()?;
        let majors;
        parenthesized!(majors in input);
        let a = if sources == "rs" {
            OperandA::Registers
        } else if sources == "ss" {
            let major = majors.parse()?;
            majors.parse::<Token![,]>()?;
            OperandA::Shared(major)
        } else {
            return Err(syn::Error::new(sources.span(), "a form is `rs` or `ss`"));
        };
        let b = majors.parse()?;
        if !majors.is_empty() {
            return Err(majors.error("`rs` names one operand, `ss` two"));
        }
        Ok(Self { a, b })
    }
}
