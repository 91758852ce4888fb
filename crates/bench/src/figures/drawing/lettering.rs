//! The font of all figures, and how wide its letters are.
//!
//! An SVG names the font and, after it, fonts of the same widths that other systems have. So the
//! widths suffice to place texts, and the font itself is not needed.

/// The font, and what stands in for it.
pub const FAMILY: &str = "Liberation Sans, Arial, Helvetica, sans-serif";

/// The widths of the letters from blank to `~`, in thousandths of the size.
#[rustfmt::skip]
const WIDTHS: [u16; 95] = [
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556,
    556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667,
    611, 778, 722, 278, 500, 667, 556, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667,
    667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500,
    222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
];

/// The width of a letter that is not among them.
const OTHER: u16 = 556;

/// The width of `text` in letters of `size`.
pub fn width(text: &str, size: f64) -> f64 {
    let of = |letter: char| {
        let index = u32::from(letter).checked_sub(u32::from(' ')).unwrap_or(u32::MAX);
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        f64::from(WIDTHS.get(index).copied().unwrap_or(OTHER))
    };
    text.chars().map(of).sum::<f64>() * size / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_are_those_of_the_font() {
        assert!(width("", 12.0).abs() < 1e-9);
        for (text, thousandths) in [("W", 944.0), ("i", 222.0), ("~", 584.0), ("\u{e9}\n", 1112.0)]
        {
            assert!((width(text, 1000.0) - thousandths).abs() < 1e-9, "{text}");
        }
        assert!((width("kops", 24.0) - 2.0 * width("kops", 12.0)).abs() < 1e-9);
    }
}
