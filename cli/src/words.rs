//! Counts in words.

/// `1 call`, `2 calls`.
pub fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

/// `text`, cut after `most` characters and marked with `…` if it has more.
pub fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        assert_eq!(
            [0, 1, 2].map(|count| counted(count, "point")),
            ["0 points", "1 point", "2 points"]
        );
    }

    #[test]
    fn what_is_short_enough_stays() {
        assert_eq!(shortened("äöü", 3), "äöü");
        assert_eq!(shortened("äöüß", 3), "äöü…");
    }
}
