//! The top-level pieces of a PTX module.

use crate::Error;

/// A directive, variable or function, with the text up to and including its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    pub text: &'a str,
    pub kind: Kind<'a>,
}

/// Kinds of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    /// `.version`, `.target`, `.address_size`: wanted in every module.
    Header,
    /// A kernel.
    Entry(&'a str),
    /// A device function or a variable, wanted where it is used.
    Symbol(&'a str),
}

/// Cuts a module into its items. Comments between items are dropped.
pub fn items(ptx: &str) -> Result<Vec<Item<'_>>, Error> {
    let mut items = Vec::new();
    let mut rest = skip_blank(ptx);
    while !rest.is_empty() {
        let length = item_length(rest)?;
        let text = rest[..length].trim_end();
        items.push(Item {
            text,
            kind: kind(text)?,
        });
        rest = skip_blank(&rest[length..]);
    }
    Ok(items)
}

/// `text` without leading white space and `//` comments.
fn skip_blank(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        match text.strip_prefix("//") {
            Some(comment) => text = comment.split_once('\n').map_or("", |(_, after)| after),
            None => return text,
        }
    }
}

/// Directives that end with their line.
const LINE_DIRECTIVES: [&str; 3] = [".version", ".target", ".address_size"];

/// Bytes of the first item of `text`: a line, up to a `;`, or up to the brace that closes a body.
fn item_length(text: &str) -> Result<usize, Error> {
    if LINE_DIRECTIVES
        .iter()
        .any(|directive| text.starts_with(directive))
    {
        return Ok(text.find('\n').unwrap_or(text.len()));
    }
    let mut depth = 0usize;
    let mut is_function = false;
    let mut position = 0;
    while let Some(next) = text[position..].find(['{', '}', ';', '/', '(']) {
        let at = position + next;
        position = at + 1;
        match text.as_bytes()[at] {
            b'/' if text[at..].starts_with("//") => {
                position = text[at..].find('\n').map_or(text.len(), |end| at + end);
            }
            b'(' if depth == 0 => is_function = true,
            b'{' => depth += 1,
            b'}' => {
                depth = depth
                    .checked_sub(1)
                    .ok_or_else(|| unexpected("a stray '}'", text))?;
                // A variable's initialiser closes a brace too, but goes on to a ';'.
                if depth == 0 && is_function {
                    return Ok(position);
                }
            }
            b';' if depth == 0 => return Ok(position),
            _ => {}
        }
    }
    Err(unexpected("no end to", text))
}

fn kind(text: &str) -> Result<Kind<'_>, Error> {
    if LINE_DIRECTIVES
        .iter()
        .any(|directive| text.starts_with(directive))
    {
        return Ok(Kind::Header);
    }
    let declaration = &text[..text.find(['{', ';', '=']).unwrap_or(text.len())];
    if let Some((_, after)) = declaration.split_once(".entry") {
        return Ok(Kind::Entry(leading_name(after)));
    }
    let name = match declaration.split_once(".func") {
        // `.func (.param .b32 result) name(...)`: the name follows the result, if there is one.
        Some((_, after)) => {
            let after = after.trim_start();
            let result = after.starts_with('(').then(|| after.find(')')).flatten();
            leading_name(&after[result.map_or(0, |end| end + 1)..])
        }
        // `.extern .shared .align 1024 .b8 name[]`: the last word, without its extent.
        None => {
            let word = declaration.split_whitespace().last().unwrap_or_default();
            word.split('[').next().unwrap_or_default()
        }
    };
    if name.is_empty() {
        Err(unexpected("no name in", text))
    } else {
        Ok(Kind::Symbol(name))
    }
}

fn leading_name(text: &str) -> &str {
    let text = text.trim_start();
    &text[..text.find(|c| !is_name_char(c)).unwrap_or(text.len())]
}

/// Characters of a PTX identifier (PTX ISA, "Identifiers").
pub fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%')
}

fn unexpected(what: &str, text: &str) -> Error {
    Error::Ptx(format!(
        "{what} {:?}",
        text.lines().next().unwrap_or_default()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_every_kind() {
        let ptx = "//\n// LLVM\n//\n\n.version 8.0\n.target sm_90a\n.address_size 64\n\n\
            .extern .shared .align 16 .b8 smem[];\n// note\n.global .align 4 .b8 table[4] = {1, 2, 3, 4};\n\
            .func  (.param .b32 r) helper(.param .b32 a)\n{\n ret; // }\n}\n\
            .visible .entry kernel(\n .param .u64 p\n)\n{\n { .reg .b32 x; }\n ret;\n}\n";
        let kinds: Vec<_> = items(ptx)
            .unwrap()
            .into_iter()
            .map(|item| item.kind)
            .collect();
        let symbol = Kind::Symbol;
        let expected = [
            Kind::Header,
            Kind::Header,
            Kind::Header,
            symbol("smem"),
            symbol("table"),
            symbol("helper"),
            Kind::Entry("kernel"),
        ];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn a_body_that_never_ends_is_an_error() {
        assert!(items(".visible .entry k()\n{\n ret;\n").is_err());
        assert!(items("}").is_err());
    }
}
