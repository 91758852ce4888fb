//! A drawing as a list of shapes, from which an SVG is made.
//!
//! Coordinates are pixels of a page, from the upper left corner. Later shapes cover earlier ones.
//! Tests check that all texts of a scene are on it and that none covers another.

use crate::figures::drawing::lettering;
use crate::figures::drawing::style::{Color, Look, Marker, WHITE};
use std::f64::consts::PI;

/// The length of the strokes of a broken line, and of its gaps.
const DASH: f64 = 5.0;

/// The width of the outline of a hollow marker.
const OUTLINE: f64 = 1.6;

/// A place.
pub type Point = (f64, f64);

/// A rectangle.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Frame {
    /// Least x.
    pub left: f64,
    /// Least y.
    pub top: f64,
    /// Greatest x.
    pub right: f64,
    /// Greatest y.
    pub bottom: f64,
}

impl Frame {
    /// From left to right.
    pub fn width(self) -> f64 {
        self.right - self.left
    }

    /// From top to bottom.
    pub fn height(self) -> f64 {
        self.bottom - self.top
    }

    #[cfg(test)]
    fn meets(self, other: Frame) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }
}

/// Which end of a text is at its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Anchor {
    /// Its first letter.
    Start,
    /// Its middle.
    Middle,
    /// Its last letter.
    End,
}

/// Letters.
#[derive(Clone, PartialEq, Debug)]
pub struct Text {
    /// The text.
    pub text: String,
    /// Where their base line is.
    pub at: Point,
    /// Their size.
    pub size: f64,
    /// Their colour.
    pub color: Color,
    /// Which of them is there.
    pub anchor: Anchor,
    /// They go upwards.
    pub upwards: bool,
}

/// One shape.
#[derive(Clone, PartialEq, Debug)]
pub enum Shape {
    /// A line through points.
    Line {
        /// The points.
        points: Vec<Point>,
        /// Its colour.
        color: Color,
        /// Its width.
        width: f64,
    },
    /// A filled polygon.
    Area {
        /// Its corners.
        points: Vec<Point>,
        /// Its colour.
        color: Color,
    },
    /// Letters.
    Text(Text),
}

/// The drawing.
#[derive(Clone, PartialEq, Debug)]
pub struct Scene {
    /// Its width.
    pub width: f64,
    /// Its height.
    pub height: f64,
    /// Its title, for those who do not see it.
    pub title: String,
    /// From the lowest to the uppermost.
    pub shapes: Vec<Shape>,
}

impl Scene {
    /// Adds a line through `points`.
    pub fn line(&mut self, points: &[Point], color: Color, width: f64) {
        if points.len() > 1 {
            self.shapes.push(Shape::Line { points: points.to_vec(), color, width });
        }
    }

    /// Adds a line of strokes through `points`.
    pub fn broken_line(&mut self, points: &[Point], color: Color, width: f64) {
        // How much of the present stroke or gap is left, and whether it is a stroke.
        let (mut left, mut inked) = (DASH, true);
        let mut stroke: Vec<Point> = points.first().copied().into_iter().collect();
        for pair in points.windows(2) {
            let [mut from, to] = [pair[0], pair[1]];
            loop {
                let distance = (to.0 - from.0).hypot(to.1 - from.1);
                if distance <= left {
                    left -= distance;
                    stroke.push(to);
                    break;
                }
                let share = left / distance;
                from = (from.0 + (to.0 - from.0) * share, from.1 + (to.1 - from.1) * share);
                stroke.push(from);
                if inked {
                    self.line(&stroke, color, width);
                }
                stroke = vec![from];
                (left, inked) = (DASH, !inked);
            }
        }
        if inked {
            self.line(&stroke, color, width);
        }
    }

    /// Adds a line that looks like `look`.
    pub fn curve(&mut self, points: &[Point], look: Look, width: f64) {
        match look.dashed {
            true => self.broken_line(points, look.color, width),
            false => self.line(points, look.color, width),
        }
    }

    /// Adds a filled rectangle.
    pub fn rectangle(&mut self, frame: Frame, color: Color) {
        let Frame { left, top, right, bottom } = frame;
        self.area(vec![(left, top), (right, top), (right, bottom), (left, bottom)], color);
    }

    /// Adds a filled polygon.
    pub fn area(&mut self, points: Vec<Point>, color: Color) {
        self.shapes.push(Shape::Area { points, color });
    }

    /// Adds a marker with the middle `at` and about the radius `size`.
    pub fn marker(&mut self, at: Point, look: Look, size: f64) {
        let corners = match look.marker {
            Marker::Circle => regular(at, size, 24, 0.0),
            Marker::Square => regular(at, size * 1.2, 4, PI / 4.0),
            Marker::Triangle => regular(at, size * 1.25, 3, 0.0),
            Marker::Diamond => regular(at, size * 1.25, 4, 0.0),
            Marker::Wedge => regular(at, size * 1.25, 3, PI),
            Marker::Pointer => regular(at, size * 1.25, 3, PI / 2.0),
            Marker::Leftward => regular(at, size * 1.25, 3, -PI / 2.0),
            Marker::Pentagon => regular(at, size * 1.15, 5, 0.0),
            Marker::Hexagon => regular(at, size * 1.1, 6, 0.0),
            Marker::Bar => {
                let (x, y) = (size * 1.25, size * 0.6);
                [(-x, -y), (x, -y), (x, y), (-x, y)].map(|it| (at.0 + it.0, at.1 + it.1)).to_vec()
            }
            Marker::Cross => {
                for (dx, dy) in [(size, size), (size, -size)] {
                    let ends = [(at.0 - dx, at.1 - dy), (at.0 + dx, at.1 + dy)];
                    self.line(&ends, look.color, if look.hollow { 1.0 } else { 2.2 });
                }
                return;
            }
        };
        if look.hollow {
            self.area(corners.clone(), WHITE);
            let closed: Vec<Point> = corners.iter().chain(corners.first()).copied().collect();
            self.line(&closed, look.color, OUTLINE);
        } else {
            self.area(corners, look.color);
        }
    }

    /// Adds a text.
    pub fn text(&mut self, text: &str, at: Point, size: f64, color: Color, anchor: Anchor) {
        let text = Text { text: text.to_owned(), at, size, color, anchor, upwards: false };
        self.shapes.push(Shape::Text(text));
    }

    /// Adds a text that goes upwards.
    pub fn upward_text(&mut self, text: &str, at: Point, size: f64, color: Color, anchor: Anchor) {
        let text = Text { text: text.to_owned(), at, size, color, anchor, upwards: true };
        self.shapes.push(Shape::Text(text));
    }

    /// Texts that do not fit: cut by the edge, or covered by another one.
    #[cfg(test)]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let texts: Vec<&Text> = self
            .shapes
            .iter()
            .filter_map(|shape| match shape {
                Shape::Text(text) => Some(text),
                _ => None,
            })
            .collect();
        for (index, text) in texts.iter().enumerate() {
            let frame = text.frame();
            let is_within = frame.left >= 0.0
                && frame.top >= 0.0
                && frame.right <= self.width
                && frame.bottom <= self.height;
            if !is_within {
                faults.push(format!("{:?} is cut: {frame:?}", text.text));
            }
            for other in &texts[index + 1..] {
                if frame.meets(other.frame()) {
                    faults.push(format!("{:?} and {:?} meet", text.text, other.text));
                }
            }
        }
        faults
    }
}

impl Text {
    /// The rectangle that it covers.
    #[cfg(test)]
    pub fn frame(&self) -> Frame {
        let width = lettering::width(&self.text, self.size);
        let before = match self.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => width / 2.0,
            Anchor::End => width,
        };
        let (above, below) = (self.size * 0.73, self.size * 0.21);
        let (x, y) = self.at;
        match self.upwards {
            false => Frame {
                left: x - before,
                top: y - above,
                right: x - before + width,
                bottom: y + below,
            },
            true => Frame {
                left: x - above,
                top: y + before - width,
                right: x + below,
                bottom: y + before,
            },
        }
    }
}

/// The corners of a regular polygon, the first of them above the middle, turned by `turn`.
fn regular(middle: Point, radius: f64, corners: u32, turn: f64) -> Vec<Point> {
    let corner = |index: u32| {
        let angle = turn + f64::from(index) * 2.0 * PI / f64::from(corners);
        (middle.0 + radius * angle.sin(), middle.1 - radius * angle.cos())
    };
    (0..corners).map(corner).collect()
}

/// Parts `text` into lines of at most `width`.
pub fn wrap(text: &str, size: f64, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if lettering::width(&format!("{line} {word}"), size) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::drawing::style::{INK, store};

    fn empty() -> Scene {
        Scene { width: 100.0, height: 50.0, title: String::new(), shapes: Vec::new() }
    }

    #[test]
    fn texts_that_meet_or_are_cut_are_found() {
        let mut scene = empty();
        scene.text("one", (10.0, 20.0), 12.0, INK, Anchor::Start);
        scene.text("two", (10.0, 40.0), 12.0, INK, Anchor::Start);
        scene.upward_text("up", (80.0, 30.0), 12.0, INK, Anchor::Start);
        assert_eq!(scene.faults(), [""; 0]);
        scene.text("three", (20.0, 22.0), 12.0, INK, Anchor::Start);
        assert_eq!(scene.faults(), ["\"one\" and \"three\" meet"]);
        scene.upward_text("cut", (95.0, 10.0), 12.0, INK, Anchor::Start);
        assert_eq!(scene.faults().len(), 2);
    }

    #[test]
    fn broken_lines_leave_gaps_and_end_where_they_should() {
        let mut scene = empty();
        scene.broken_line(&[(0.0, 0.0), (12.0, 0.0), (22.0, 0.0)], INK, 1.0);
        let strokes: Vec<(Point, Point)> = scene
            .shapes
            .iter()
            .map(|shape| match shape {
                Shape::Line { points, .. } => (points[0], *points.last().unwrap()),
                _ => panic!("a line is made of lines"),
            })
            .collect();
        let expected = [(0.0, 5.0), (10.0, 15.0), (20.0, 22.0)];
        assert_eq!(strokes, expected.map(|(from, to)| ((from, 0.0), (to, 0.0))));
    }

    #[test]
    fn lines_of_text_fit() {
        let lines = wrap("a few words that do not fit into one line", 12.0, 90.0);
        assert!(lines.len() > 2 && lines.iter().all(|line| lettering::width(line, 12.0) <= 90.0));
        assert_eq!(lines.join(" "), "a few words that do not fit into one line");
    }

    #[test]
    fn every_marker_is_drawn() {
        for name in crate::stores::names() {
            for hollow in [false, true] {
                let mut scene = empty();
                scene.marker((10.0, 10.0), Look { hollow, ..store(name) }, 4.0);
                assert!(!scene.shapes.is_empty());
            }
        }
    }
}
