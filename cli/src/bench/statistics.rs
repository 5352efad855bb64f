//! What a figure is taken from many measurements by.

/// The later half of the measurements, taken after the device has settled.
pub fn second_half<T>(values: &[T]) -> &[T] {
    &values[values.len() / 2..]
}

/// Median of at least one value.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_settled_is_the_second_half() {
        assert_eq!(second_half(&[1, 2, 3, 4]), [3, 4]);
        assert_eq!(second_half(&[1, 2, 3]), [2, 3]);
        assert_eq!(second_half(&[1]), [1]);
        assert!(second_half::<f64>(&[]).is_empty());
    }

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(median(&[3.0, 1.0, 20.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0, 20.0, 2.0]), 3.0);
        assert_eq!(median(&[5.0]), 5.0);
    }
}
