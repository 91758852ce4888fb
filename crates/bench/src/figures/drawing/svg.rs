//! From a scene to the text of an SVG.

use super::lettering::FAMILY;
use super::scene::{Anchor, Point, Scene, Shape};
use super::style::{Color, WHITE};

/// The namespace of SVG.
const NAMESPACE: &str = "http://www.w3.org/2000/svg";

/// The text of an SVG.
pub fn svg(scene: &Scene) -> String {
    let Scene { width, height, title, .. } = scene;
    let mut text = format!(
        "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         stroke-linejoin=\"round\" font-family=\"{FAMILY}\" xmlns=\"{NAMESPACE}\">\n\
         <title>{}</title>\n<rect width=\"{width}\" height=\"{height}\" fill=\"{}\"/>\n",
        escape(title),
        hex(WHITE),
    );
    for shape in &scene.shapes {
        text.push_str(&tag(shape));
        text.push('\n');
    }
    text + "</svg>\n"
}

fn tag(shape: &Shape) -> String {
    match shape {
        Shape::Line { points, color, width } => {
            let (points, color) = (places(points), hex(*color));
            let width = hundredths(*width);
            format!(
                "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\" \
                 points=\"{points}\"/>"
            )
        }
        Shape::Area { points, color } => {
            format!("<polygon fill=\"{}\" points=\"{}\"/>", hex(*color), places(points))
        }
        Shape::Text(text) => {
            let anchor = match text.anchor {
                Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            };
            let [x, y, size] = [text.at.0, text.at.1, text.size].map(hundredths);
            let turn = if text.upwards {
                format!(" transform=\"rotate(270 {x} {y})\"")
            } else {
                String::new()
            };
            format!(
                "<text x=\"{x}\" y=\"{y}\"{turn} text-anchor=\"{anchor}\" font-size=\"{size}\" \
                 fill=\"{}\">{}</text>",
                hex(text.color),
                escape(&text.text),
            )
        }
    }
}

fn places(points: &[Point]) -> String {
    let places: Vec<String> =
        points.iter().map(|(x, y)| format!("{},{}", hundredths(*x), hundredths(*y))).collect();
    places.join(" ")
}

/// A number to the nearest hundredth, which is finer than any screen or printer.
fn hundredths(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

fn hex(Color(red, green, blue): Color) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}

/// `text` for a page or an SVG: none of its characters is a tag's.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // No document may have these, not even escaped.
            control if control.is_control() && !matches!(control, '\n' | '\t') => {
                escaped.push('\u{fffd}');
            }
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
pub mod tests {
    use super::super::scene::Frame;
    use super::super::style::INK;
    use super::*;

    /// Fails unless `text` is one tag with others below it, each closed.
    pub fn check_well_formed(text: &str) {
        let mut open: Vec<&str> = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('<') {
            assert!(!before.contains('>'), "a stray end of a tag: {before}");
            assert!(!open.is_empty() || before.trim().is_empty(), "text outside: {before}");
            let (tag, after) = after.split_once('>').expect("a tag ends");
            assert!(tag.matches('"').count() % 2 == 0, "an open quote: {tag}");
            match tag.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name), "the wrong tag is closed"),
                None if tag.ends_with('/') => {}
                None => open.push(tag.split_whitespace().next().unwrap_or_default()),
            }
            rest = after;
        }
        assert!(open.is_empty() && rest.trim().is_empty(), "not closed: {open:?}");
    }

    fn sample() -> Scene {
        let mut scene =
            Scene { width: 60.0, height: 40.0, title: "a & b".to_owned(), shapes: Vec::new() };
        scene.rectangle(Frame { left: 10.0, top: 10.0, right: 20.0, bottom: 20.0 }, INK);
        scene.line(&[(0.0, 0.0), (30.0, 10.0), (0.0, 20.0)], INK, 2.0);
        scene.text("<x>", (30.0, 30.0), 12.0, INK, Anchor::Start);
        scene.upward_text("y", (58.0, 30.0), 12.0, INK, Anchor::Middle);
        scene
    }

    #[test]
    fn every_shape_is_written_and_escaped() {
        let text = svg(&sample());
        check_well_formed(&text);
        assert!(text.contains("a &amp; b") && text.contains(">&lt;x&gt;</text>"), "{text}");
        assert!(text.starts_with("<svg width=\"60\" height=\"40\" viewBox=\"0 0 60 40\""));
        let square = "<polygon fill=\"#222222\" points=\"10,10 20,10 20,20 10,20\"/>";
        let line = "stroke-width=\"2\" points=\"0,0 30,10 0,20\"/>";
        let upward = "transform=\"rotate(270 58 30)\" text-anchor=\"middle\"";
        assert!([square, line, upward].iter().all(|part| text.contains(part)), "{text}");
    }

    #[test]
    fn nothing_of_a_text_becomes_a_tag() {
        assert_eq!(escape("<a b=\"c\">'&\u{1}"), "&lt;a b=&quot;c&quot;&gt;&#39;&amp;\u{fffd}");
    }
}
