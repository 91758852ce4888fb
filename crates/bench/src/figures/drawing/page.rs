//! The frame of all figures: a title, a description, a legend, notes.
//!
//! A page is filled from the top: each call takes the room that it needs and moves on, so that
//! nothing covers anything, whatever the number of stores.

use crate::figures::drawing::lettering;
use crate::figures::drawing::scene::{Anchor, Frame, Scene, wrap};
use crate::figures::drawing::style::{
    Color, GRAY, INK, LEADING, Look, MARGIN, SMALL, TEXT, TITLE, WIDTH,
};

/// The length of a sample of a line in a legend.
const SAMPLE: f64 = 26.0;

/// The width of a sample of a bar.
const SWATCH: f64 = 14.0;

/// The symbol of a look in a legend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sample {
    /// A line with a marker.
    Curve,
    /// A line alone.
    Line,
    /// A bar.
    Bar,
}

/// The room around the panels of a row.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Left of each panel: the numbers of its axis.
    pub left: f64,
    /// Above: its name.
    pub above: f64,
    /// Below: the numbers of its axis, and what they are.
    pub below: f64,
}

impl Room {
    /// For a panel with numbers on both axes and a name on each.
    pub const FULL: Room = Room { left: 52.0, above: 30.0, below: 50.0 };
}

/// A figure that is being filled.
#[derive(Debug)]
pub struct Page {
    /// The drawing so far.
    pub scene: Scene,
    /// The next free line.
    top: f64,
}

impl Page {
    /// Begins with a title and a description of the workload.
    pub fn new(title: &str, work: &str) -> Self {
        let scene =
            Scene { width: WIDTH, height: 0.0, title: title.to_owned(), shapes: Vec::new() };
        let mut page = Self { scene, top: MARGIN };
        page.lines(title, TITLE, INK);
        page.top += 2.0;
        page.lines(work, SMALL, GRAY);
        page.top += 4.0;
        page
    }

    /// Writes `text`, in as many lines as it needs.
    fn lines(&mut self, text: &str, size: f64, color: Color) {
        for line in wrap(text, size, WIDTH - 2.0 * MARGIN) {
            let place = (MARGIN, self.top + size * 0.95);
            self.scene.text(&line, place, size, color, Anchor::Start);
            self.top += size * LEADING;
        }
    }

    /// Shows which look is what.
    pub fn legend(&mut self, sample: Sample, entries: &[(Look, String)]) {
        self.top += 4.0;
        let mut left = MARGIN;
        for (look, name) in entries {
            let shown = if sample == Sample::Bar { SWATCH } else { SAMPLE };
            let width = shown + 7.0 + lettering::width(name, TEXT) + 22.0;
            if left > MARGIN && left + width > WIDTH - MARGIN {
                left = MARGIN;
                self.top += TEXT * 1.6;
            }
            let middle = self.top + TEXT * 0.6;
            let ends = [(left, middle), (left + shown, middle)];
            match sample {
                Sample::Bar => {
                    let frame = Frame {
                        left,
                        top: middle - 6.0,
                        right: left + shown,
                        bottom: middle + 6.0,
                    };
                    self.scene.rectangle(frame, look.color);
                }
                Sample::Line | Sample::Curve => {
                    self.scene.curve(&ends, *look, 2.0);
                    if sample == Sample::Curve {
                        self.scene.marker((left + shown / 2.0, middle), *look, 4.0);
                    }
                }
            }
            let place = (left + shown + 7.0, middle + TEXT * 0.36);
            self.scene.text(name, place, TEXT, INK, Anchor::Start);
            left += width;
        }
        self.top += TEXT * 1.5;
    }

    /// Takes a row of `columns` panels of `height`; gives their frames.
    pub fn row(&mut self, columns: usize, height: f64, room: Room) -> Vec<Frame> {
        let count = u32::try_from(columns.max(1)).map_or(1.0, f64::from);
        let between = 18.0;
        let free = WIDTH - 2.0 * MARGIN - between * (count - 1.0);
        let width = free / count;
        let top = self.top + room.above;
        self.top = top + height + room.below;
        let frame = |column: usize| {
            let column = u32::try_from(column).map_or(0.0, f64::from);
            let left = MARGIN + column * (width + between);
            Frame { left: left + room.left, top, right: left + width, bottom: top + height }
        };
        (0..columns).map(frame).collect()
    }

    /// Ends with `notes`.
    pub fn finish(mut self, notes: &[String]) -> Scene {
        self.top += 6.0;
        for note in notes {
            self.lines(note, SMALL, GRAY);
        }
        self.scene.height = (self.top + MARGIN * 0.75).ceil();
        self.scene
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::drawing::style::store;

    #[test]
    fn nothing_covers_anything() {
        let long = "words ".repeat(60);
        let mut page = Page::new("A title", &long);
        let names = crate::stores::names().into_iter().chain(["a long name of something else"]);
        let entries: Vec<(Look, String)> =
            names.map(|name| (store(name), name.to_owned())).collect();
        page.legend(Sample::Curve, &entries);
        let frames = page.row(3, 100.0, Room::FULL);
        assert!(frames.windows(2).all(|pair| pair[0].right < pair[1].left));
        assert!(frames[2].right <= WIDTH - MARGIN + 1e-9);
        let scene = page.finish(&[long, "another note".to_owned()]);
        assert_eq!(scene.faults(), [""; 0]);
    }
}
