//! Reading PTX text: tokens, syntax tree, parser (PTX ISA 8.x, the subset LLVM emits).

pub mod ast;
mod cursor;
mod declaration;
mod lexer;
mod operand;
mod parser;

pub use parser::parse;
