//! The font of all figures, and letters as the plotting library asks for them.
//!
//! The font is part of the program: a bitmap looks the same on every machine. An SVG names the font
//! and, after it, fonts of the same widths that other systems have.
//!
//! The plotting library asks a style for each pixel of a text. It is answered here and not by its
//! own support for this kind of font, which moves every letter to the left by what is empty before
//! it.

use crate::figures::scene::Anchor;
use ab_glyph::{Font, FontRef, PxScale, point};
use plotters_backend::text_anchor::{HPos, Pos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendTextStyle, FontFamily, FontStyle, FontTransform,
};
use std::convert::Infallible;
use std::sync::LazyLock;

/// What an SVG asks for.
const FAMILY: &str = "Liberation Sans, Arial, Helvetica, sans-serif";

/// The library divides the size by this for an SVG.
const LIBRARY_FACTOR: f64 = 1.24;

/// The library lowers texts of an SVG by so much of their size.
pub const SVG_DROP: f64 = 0.76;

static FONT: LazyLock<FontRef<'static>> = LazyLock::new(|| {
    FontRef::try_from_slice(include_bytes!("../../fonts/LiberationSans-Regular.ttf"))
        .expect("the font is part of the program")
});

/// The width of `text` in letters of `size`.
pub fn width(text: &str, size: f64) -> f64 {
    let units = FONT.units_per_em().map_or(1.0, f64::from);
    places(text).last().map_or(0.0, |(_, end)| end * size / units)
}

/// For each letter where it begins and where it ends, in units of the font.
fn places(text: &str) -> impl Iterator<Item = (f64, f64)> {
    let mut end = 0.0;
    let mut before = None;
    text.chars().map(move |letter| {
        let glyph = FONT.glyph_id(letter);
        let kern = before.replace(glyph).map_or(0.0, |before| FONT.kern_unscaled(before, glyph));
        let start = end + f64::from(kern);
        end = start + f64::from(FONT.h_advance_unscaled(glyph));
        (start, end)
    })
}

/// How a text is written.
#[derive(Clone, Copy)]
pub struct Lettering {
    /// Its colour.
    pub color: BackendColor,
    /// Its size in pixels of the device.
    pub size: f64,
    /// Which end is at its place.
    pub anchor: Anchor,
    /// It goes upwards.
    pub upwards: bool,
}

impl BackendTextStyle for Lettering {
    type FontError = Infallible;

    fn color(&self) -> BackendColor {
        self.color
    }

    fn size(&self) -> f64 {
        self.size * LIBRARY_FACTOR
    }

    fn transform(&self) -> FontTransform {
        if self.upwards { FontTransform::Rotate270 } else { FontTransform::None }
    }

    fn style(&self) -> FontStyle {
        FontStyle::Normal
    }

    fn anchor(&self) -> Pos {
        let horizontal = match self.anchor {
            Anchor::Start => HPos::Left,
            Anchor::Middle => HPos::Center,
            Anchor::End => HPos::Right,
        };
        Pos::new(horizontal, VPos::Top)
    }

    fn family(&self) -> FontFamily<'_> {
        FontFamily::Name(FAMILY)
    }

    #[expect(clippy::cast_possible_truncation, reason = "a text is far narrower than 2^31 pixels")]
    fn layout_box(&self, text: &str) -> Result<((i32, i32), (i32, i32)), Infallible> {
        Ok(((0, 0), (width(text, self.size).round() as i32, 0)))
    }

    /// Letters whose base line goes through `pos`.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "a text is far narrower than 2^31 pixels"
    )]
    fn draw<E, DrawFunc: FnMut(i32, i32, BackendColor) -> Result<(), E>>(
        &self,
        text: &str,
        pos: BackendCoord,
        mut draw: DrawFunc,
    ) -> Result<Result<(), E>, Infallible> {
        let units = FONT.units_per_em().map_or(1.0, f64::from);
        let height = f64::from(FONT.height_unscaled());
        let scale = PxScale::from((self.size * height / units) as f32);
        for (letter, (start, _)) in text.chars().zip(places(text)) {
            let place = point((start * self.size / units) as f32, 0.0);
            let glyph = FONT.glyph_id(letter).with_scale_and_position(scale, place);
            let Some(outline) = FONT.outline_glyph(glyph) else { continue };
            let corner = outline.px_bounds().min;
            let corner = (pos.0 + corner.x as i32, pos.1 + corner.y as i32);
            let mut ended = Ok(());
            outline.draw(|x, y, coverage| {
                if ended.is_ok() && coverage > 0.0 {
                    let color = self.color.mix(f64::from(coverage.min(1.0)));
                    ended = draw(corner.0 + x as i32, corner.1 + y as i32, color);
                }
            });
            if ended.is_err() {
                return Ok(ended);
            }
        }
        Ok(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_grow_with_letters_and_size() {
        assert!(width("", 12.0).abs() < 1e-9);
        assert!(width("WW", 12.0) > 2.0 * width("ii", 12.0));
        assert!((width("kops", 24.0) - 2.0 * width("kops", 12.0)).abs() < 1e-9);
    }

    #[test]
    fn letters_lie_on_their_line_and_are_not_moved_to_the_left() {
        let color = BackendColor { alpha: 1.0, rgb: (0, 0, 0) };
        let style = Lettering { color, size: 100.0, anchor: Anchor::Start, upwards: false };
        let (mut left, mut right, mut bottom) = (i32::MAX, 0, i32::MIN);
        let drawn = style.draw::<(), _>("l", (0, 0), |x, y, _| {
            (left, right, bottom) = (left.min(x), right.max(x), bottom.max(y));
            Ok(())
        });
        drawn.unwrap().unwrap();
        // The font has room before and behind this letter.
        assert!(left > 3 && right < 19, "{left} {right}");
        assert!((-2..=0).contains(&bottom), "{bottom}");
    }
}
