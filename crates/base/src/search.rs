//! Searches in sorted numbers.

/// How many numbers at the start of `sorted` are `value`; none of them is smaller.
///
/// `Hot path`: mostly none or one is, so it begins there and doubles its steps.
#[inline]
#[must_use]
pub fn leading(sorted: &[u64], value: u64) -> usize {
    let (mut known, mut step) = (0, 1);
    while sorted.get(known + step - 1) == Some(&value) {
        known += step;
        step *= 2;
    }
    let end = (known + step - 1).min(sorted.len());
    known + sorted[known..end].partition_point(|&n| n == value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_are_equal_are_counted() {
        for same in 0..70 {
            for others in 0..70 {
                let numbers: Vec<u64> = (0..same).map(|_| 7).chain(8..8 + others).collect();
                assert_eq!(leading(&numbers, 7), same, "{same} before {others}");
            }
        }
    }
}
