//! One module per kernel, so that a driver compiles only what is used.

use std::collections::{HashMap, HashSet};

use crate::Error;
use crate::ptx::item::{Item, Kind, is_name_char, items};

/// Every kernel's name with a module that holds it and what it uses, in the order of the source.
pub fn split(ptx: &str) -> Result<Vec<(String, String)>, Error> {
    let items = items(ptx)?;
    // A function's declaration, which its callers need before them, and its definition have one name.
    let mut symbols: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, item) in items.iter().enumerate() {
        if let Kind::Symbol(name) = item.kind {
            symbols.entry(name).or_default().push(index);
        }
    }
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
fn reachable(
    items: &[Item<'_>],
    symbols: &HashMap<&str, Vec<usize>>,
    entry: usize,
) -> HashSet<usize> {
    let mut used = HashSet::from([entry]);
    let mut pending = vec![entry];
    while let Some(index) = pending.pop() {
        for word in items[index].text.split(|c| !is_name_char(c)) {
            for &symbol in symbols.get(word).into_iter().flatten() {
                if used.insert(symbol) {
                    pending.push(symbol);
                }
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

    /// As rustc leaves a panic that no check was seen to rule out.
    #[test]
    fn a_function_is_declared_before_its_caller() {
        let ptx = ".version 8.0\n.func panic()\n.noreturn\n;\n\
            .visible .entry a()\n{\n call panic;\n}\n.func panic()\n{\n trap;\n}\n";
        let [(_, module)] = &split(ptx).unwrap()[..] else {
            panic!("one kernel");
        };
        let places = [".noreturn\n;", "call", "trap"].map(|word| module.find(word));
        assert!(
            places.iter().all(Option::is_some) && places.is_sorted(),
            "{module}"
        );
    }
}
