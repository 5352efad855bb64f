//! Attributes for GPU kernels, [`macro@kernel`], [`macro@launch_bounds`] and [`macro@append_name`], and the generator of warpgroup
//! matrix multiplications, [`wgmma_gemms!`].

mod wgmma;

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Expr, ItemFn, Token, parse_macro_input, parse_quote};

/// Environment variable that names the kernels to compile while one works on them: parts of names, separated by commas.
/// All others are left out, and with them most of the compiler's time.
const KERNELS_VAR: &str = "CUDA_STD_KERNELS";

/// Does [`KERNELS_VAR`] leave `kernel` in?
fn is_wanted(kernel: &ItemFn) -> bool {
    let name = kernel.sig.ident.to_string();
    std::env::var(KERNELS_VAR).map_or(true, |parts| {
        parts.split(',').any(|part| name.contains(part))
    })
}

/// Marks a function as a GPU kernel: exported unmangled with the `ptx-kernel` ABI.
///
/// Off the GPU the function is left out, so that a kernel crate is an ordinary library there.
/// The function must be `unsafe` and return nothing, as the launch checks none of its arguments.
#[proc_macro_attribute]
pub fn kernel(attr: TokenStream, item: TokenStream) -> TokenStream {
    if !attr.is_empty() {
        return error("#[kernel] takes no arguments");
    }
    let mut function = parse_macro_input!(item as ItemFn);
    if function.sig.unsafety.is_none() {
        return error("a #[kernel] function must be `unsafe`");
    }
    if !matches!(function.sig.output, syn::ReturnType::Default) {
        return error("a #[kernel] function returns nothing");
    }
    if !is_wanted(&function) {
        return TokenStream::new();
    }
    function.sig.abi = Some(parse_quote!(extern "ptx-kernel"));
    function.attrs.push(parse_quote!(#[unsafe(no_mangle)]));
    quote! {
        #[cfg(target_arch = "nvptx64")]
        const _: Option<&str> = option_env!(#KERNELS_VAR);
        #[cfg(target_arch = "nvptx64")]
        #function
    }
    .into()
}

/// `#[append_name(suffix)]`: the function's name gets `_suffix` at its end, as a macro by example cannot give it. Goes above
/// [`macro@kernel`] and [`macro@launch_bounds`], which then see the whole name.
#[proc_macro_attribute]
pub fn append_name(attr: TokenStream, item: TokenStream) -> TokenStream {
    let suffix = parse_macro_input!(attr as syn::Ident);
    let mut function = parse_macro_input!(item as ItemFn);
    function.sig.ident = quote::format_ident!("{}_{suffix}", function.sig.ident);
    quote!(#function).into()
}

/// The arguments of `#[launch_bounds(..)]`.
struct LaunchBounds {
    values: Punctuated<Expr, Token![,]>,
}

impl Parse for LaunchBounds {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let values = Punctuated::<Expr, Token![,]>::parse_terminated(input)?;
        if (1..=3).contains(&values.len()) {
            Ok(Self { values })
        } else {
            Err(input.error("expected #[launch_bounds(threads[, min_blocks[, cluster]])]"))
        }
    }
}

/// `#[launch_bounds(threads[, min_blocks[, cluster]])]`: what a launch of the kernel always looks like.
///
/// rustc cannot emit PTX's performance directives, so this records the values as a comment in the PTX,
/// from which `cuda_builder` writes `.maxntid`, `.minnctapersm` and, for `cluster > 1`,
/// `.explicitcluster` with `.reqnctapercluster` (PTX ISA, "Performance-Tuning Directives" and "Cluster
/// Dimension Directives"). Each value is a constant expression. Goes above or below `#[kernel]`.
#[proc_macro_attribute]
pub fn launch_bounds(attr: TokenStream, item: TokenStream) -> TokenStream {
    let LaunchBounds { values } = parse_macro_input!(attr as LaunchBounds);
    let function = parse_macro_input!(item as ItemFn);
    if !is_wanted(&function) {
        // Without this constant cargo would not compile the crate again for another value of the variable.
        return quote! {
            #[cfg(target_arch = "nvptx64")]
            const _: Option<&str> = option_env!(#KERNELS_VAR);
        }
        .into();
    }
    let name = function.sig.ident.to_string();
    let mut values: Vec<Tokens> = values.iter().map(|value| quote!(#value)).collect();
    values.resize(3, quote!(1));
    let template = format!("// cuda_std.launch_bounds {name} {{}} {{}} {{}}");
    quote! {
        #[cfg(target_arch = "nvptx64")]
        ::core::arch::global_asm!(#template, #(const #values),*);
        #function
    }
    .into()
}

/// Implements `cuda_std::wgmma`'s GEMM traits for a list of forms and shapes; for use in that module only.
///
/// ```text
/// rs(B): (n, k), …;       A (64 × k) in registers, B (k × n) in shared memory: `GemmRs`
/// ss(A, B): (n, k), …;    both in shared memory: `GemmSs`
/// ```
///
/// `A` and `B` say how the operand lies: `k` for K-major, `k of 128` for rows of K-major atom columns that have 128, `mn` for
/// MN-major.
#[proc_macro]
pub fn wgmma_gemms(input: TokenStream) -> TokenStream {
    wgmma::expand(&parse_macro_input!(input as wgmma::Families)).into()
}

fn error(message: &str) -> TokenStream {
    syn::Error::new(proc_macro2::Span::call_site(), message)
        .to_compile_error()
        .into()
}
