//! Finds the paths that code names.

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{ImplItem, Item, Macro, UseTree};

use super::tree::is_for_tests;

/// A path as written in the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mention {
    pub segments: Vec<String>,
    pub line: usize,
}

/// Every path that `item` names outside its tests.
pub fn of(item: &Item) -> Vec<Mention> {
    let mut finder = Finder::default();
    finder.visit_item(item);
    finder.found
}

#[derive(Default)]
struct Finder {
    found: Vec<Mention>,
}

impl Finder {
    fn add_use(&mut self, tree: &UseTree, mut path: Vec<String>) {
        match tree {
            UseTree::Path(step) => {
                path.push(step.ident.to_string());
                self.add_use(&step.tree, path);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use(tree, path.clone());
                }
            }
            UseTree::Name(last) if last.ident != "self" => {
                path.push(last.ident.to_string());
                self.add(path, last.span());
            }
            UseTree::Rename(last) if last.ident != "self" => {
                path.push(last.ident.to_string());
                self.add(path, last.span());
            }
            UseTree::Name(_) | UseTree::Rename(_) | UseTree::Glob(_) => {
                self.add(path, tree.span());
            }
        }
    }

    fn add(&mut self, segments: Vec<String>, span: proc_macro2::Span) {
        let line = span.start().line;
        self.found.push(Mention { segments, line });
    }

    /// Adds the paths in a macro's tokens, whose grammar is unknown: any names joined by `::`.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        let mut begin = None;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => {
                    colons += 1;
                    continue;
                }
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.end_path(&mut path, &mut begin);
                    }
                    begin.get_or_insert(ident.span());
                    path.push(ident.to_string());
                    colons = 0;
                    continue;
                }
                TokenTree::Group(group) => {
                    self.end_path(&mut path, &mut begin);
                    self.add_tokens(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {
                    self.end_path(&mut path, &mut begin);
                }
            }
            colons = 0;
        }
        self.end_path(&mut path, &mut begin);
    }

    fn end_path(&mut self, path: &mut Vec<String>, begin: &mut Option<proc_macro2::Span>) {
        if let Some(span) = begin.take() {
            self.add(std::mem::take(path), span);
        }
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item(&mut self, item: &'ast Item) {
        // A function may hold imports and items of its own.
        match item {
            Item::Use(import) => self.add_use(&import.tree, Vec::new()),
            Item::Mod(inner) if is_for_tests(&inner.attrs) => {}
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Fn(item) => &item.attrs[..],
            ImplItem::Const(item) => &item.attrs,
            _ => &[],
        };
        if !is_for_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter();
        let segments = segments.map(|segment| segment.ident.to_string()).collect();
        self.add(segments, path.span());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.add_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}
