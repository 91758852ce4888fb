//! The look of all figures: colours, markers, sizes of text.
//!
//! A store has one colour and one marker in every figure, so that readers learn them once. The
//! colours are those of Okabe and Ito, which colour-blind people can distinguish; markers repeat
//! the distinction for print without colours.

use crate::stores;

/// The width of every figure, in pixels of a page.
pub const WIDTH: f64 = 900.0;

/// From the edge of a figure to what is in it.
pub const MARGIN: f64 = 16.0;

/// The size of a figure's title.
pub const TITLE: f64 = 18.0;

/// The size of names of axes and panels.
pub const TEXT: f64 = 13.0;

/// The size of everything else.
pub const SMALL: f64 = 12.0;

/// The height of a line of text for each unit of its size.
pub const LEADING: f64 = 1.35;

/// Red, green, blue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Color(pub u8, pub u8, pub u8);

/// The ground.
pub const WHITE: Color = Color(255, 255, 255);

/// Titles and numbers.
pub const INK: Color = Color(0x22, 0x22, 0x22);

/// Notes and numbers of axes.
pub const GRAY: Color = Color(0x5a, 0x5a, 0x5a);

/// Axes.
pub const AXIS: Color = Color(0x88, 0x88, 0x88);

/// The grid.
pub const GRID: Color = Color(0xe3, 0xe3, 0xe3);

/// Bands that part one stretch from the next.
pub const BAND: Color = Color(0xf3, 0xf4, 0xf6);

/// The marker of a measured point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Marker {
    /// A circle.
    Circle,
    /// A square.
    Square,
    /// A triangle that stands on its side.
    Triangle,
    /// A square on its corner.
    Diamond,
    /// A triangle that stands on its tip.
    Wedge,
    /// A triangle that points to the right.
    Pointer,
    /// A triangle that points to the left.
    Leftward,
    /// Two crossed strokes.
    Cross,
    /// Five corners.
    Pentagon,
    /// Six corners.
    Hexagon,
    /// A square that is wider than high.
    Bar,
}

/// How one curve or bar looks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Look {
    /// Of the line and the marker.
    pub color: Color,
    /// At the points.
    pub marker: Marker,
    /// The marker is only its outline.
    pub hollow: bool,
    /// The line is broken.
    pub dashed: bool,
}

/// Stores that have a colour of their own. Engines of ours that come later take the rest.
const STORES: [(&str, Color, Marker); 11] = [
    ("turtle", Color(0x00, 0x72, 0xb2), Marker::Circle),
    ("autumn", Color(0x88, 0x22, 0x55), Marker::Hexagon),
    ("splinter", Color(0x33, 0x22, 0x88), Marker::Pointer),
    ("treeline", Color(0x11, 0x77, 0x33), Marker::Leftward),
    ("bminus", Color(0x99, 0x99, 0x33), Marker::Bar),
    ("rocksdb", Color(0xd5, 0x5e, 0x00), Marker::Square),
    ("wiredtiger", Color(0x00, 0x9e, 0x73), Marker::Triangle),
    ("lmdb", Color(0xcc, 0x79, 0xa7), Marker::Diamond),
    ("fjall", Color(0xe6, 0x9f, 0x00), Marker::Wedge),
    ("redb", Color(0x56, 0xb4, 0xe9), Marker::Cross),
    ("bf-tree", Color(0x55, 0x55, 0x55), Marker::Pentagon),
];

const OTHERS: [(Color, Marker); 2] =
    [(Color(0xdd, 0xcc, 0x77), Marker::Triangle), (Color(0xaa, 0x44, 0x99), Marker::Square)];

/// The look of a store. One that compresses looks like the same one that does not, but hollow.
pub fn store(name: &str) -> Look {
    let base = stores::base_of(name);
    if base != name {
        return Look { hollow: true, dashed: true, ..store(base) };
    }
    let known = STORES.iter().find(|(store, ..)| *store == name);
    let (color, marker) = known.map_or_else(
        || OTHERS[name.bytes().map(usize::from).sum::<usize>() % OTHERS.len()],
        |(_, color, marker)| (*color, *marker),
    );
    Look { color, marker, hollow: false, dashed: false }
}

impl Color {
    /// The colour mixed with white: 1 leaves it, 0 is white.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a mean of two bytes is a byte"
    )]
    pub fn tint(self, share: f64) -> Self {
        let mix = |part: u8| (255.0 - (255.0 - f64::from(part)) * share).round() as u8;
        Self(mix(self.0), mix(self.1), mix(self.2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_store_has_a_look_of_its_own() {
        let names = stores::names();
        for (index, name) in names.iter().enumerate() {
            for other in &names[index + 1..] {
                assert_ne!(store(name).color, store(other).color, "{name} and {other}");
                assert_ne!(store(name).marker, store(other).marker, "{name} and {other}");
            }
        }
    }

    #[test]
    fn compressed_stores_look_like_the_others_but_hollow() {
        for kind in stores::compressed() {
            let base = stores::base_of(kind.name);
            assert!(stores::names().contains(&base), "{base}");
            assert_eq!(store(kind.name), Look { hollow: true, dashed: true, ..store(base) });
        }
        assert_eq!(stores::base_of("bf-tree"), "bf-tree");
    }

    #[test]
    fn tints_go_to_white() {
        assert_eq!(INK.tint(1.0), INK);
        assert_eq!(INK.tint(0.0), WHITE);
    }
}
