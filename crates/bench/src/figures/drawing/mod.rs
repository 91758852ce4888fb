//! How figures are drawn.
//!
//! | file | content |
//! | --- | --- |
//! | `scene.rs` | a drawing as a list of shapes |
//! | `page.rs` | the title, the legend and the notes of a figure |
//! | `axes.rs` | a panel with two axes |
//! | `style.rs` | colours, markers, sizes of text |
//! | `lettering.rs` | the font, and the widths of its letters |
//! | `svg.rs` | from a scene to the text of an SVG |

pub mod axes;
pub mod lettering;
pub mod page;
pub mod scene;
pub mod style;
pub mod svg;
