//! One module per kernel, so that a driver compiles only what is used.

use std::collections::{HashMap, HashSet};

use crate::Error;
use crate::ptx::item::{Item, Kind, is_name_char, items};

/// Every kernel's name with a module that holds it and what it uses, in the order of the source.
pub fn split(ptx: &str) -> Result<Vec<(String, String)>, Error> {
    let items = items(ptx)?;
    let symbols: HashMap<&str, usize> = items
        .iter()
        .enumerate()
        .filter_map(|(index, item)| match item.kind {
            Kind::Symbol(name) => Some((name, index)),
            Kind::Header | Kind::Entry(_) => None,
        })
        .collect();
    let module = |entry: usize| {
        let used = reachable(&items, &symbols, entry);
        let mut module = String::new();
        for (index, item) in items.iter().enumerate() {
            if item.kind == Kind::Header || used.contains(&index) {
                module.push_str(item.text);
                module.push('\n');
            }
        }
        module
    };
    Ok(items
        .iter()
        .enumerate()
        .filter_map(|(index, item)| match item.kind {
            Kind::Entry(name) => Some((name.to_owned(), module(index))),
            Kind::Header | Kind::Symbol(_) => None,
        })
        .collect())
}

/// The items `entry` names, directly or through others, itself included.
fn reachable(items: &[Item<'_>], symbols: &HashMap<&str, usize>, entry: usize) -> HashSet<usize> {
    let mut used = HashSet::from([entry]);
    let mut pending = vec![entry];
    while let Some(index) = pending.pop() {
        for word in items[index].text.split(|c| !is_name_char(c)) {
            if let Some(&symbol) = symbols.get(word)
                && used.insert(symbol)
            {
                pending.push(symbol);
            }
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kernel_gets_what_it_uses_and_no_more() {
        let ptx = ".version 8.0\n.target sm_80\n.address_size 64\n\
            .extern .shared .align 16 .b8 smem[];\n.global .b8 table[1] = {1};\n\
            .func inner()\n{\n mov.u64 %rd1, table;\n}\n.func outer()\n{\n call inner;\n}\n\
            .visible .entry a()\n{\n mov.u32 %r1, smem;\n}\n.visible .entry b()\n{\n call outer;\n}\n";
        let modules = split(ptx).unwrap();
        let names: Vec<_> = modules.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let contains = |module: &str, words: [&str; 4]| words.map(|word| module.contains(word));
        let words = ["smem[]", "table[1]", "outer()", ".entry a()"];
        assert_eq!(contains(&modules[0].1, words), [true, false, false, true]);
        assert_eq!(contains(&modules[1].1, words), [false, true, true, false]);
        assert!(
            modules
                .iter()
                .all(|(_, module)| module.starts_with(".version 8.0\n.target sm_80\n"))
        );
    }
}
