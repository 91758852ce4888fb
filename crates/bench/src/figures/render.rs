//! From a scene to the text of an SVG and to the bytes of a PNG.
//!
//! Both backends place shapes at whole pixels. So an SVG is drawn large and its view is scaled, and
//! a bitmap is drawn larger than it will be: means of its pixels give smooth edges.

use crate::failure::{Failure, Result};
use crate::figures::lettering::{Lettering, SVG_DROP};
use crate::figures::scene::{Point, Scene, Shape};
use crate::figures::style::Color;
use plotters_backend::{BackendColor, BackendCoord, BackendStyle, DrawingBackend};
use plotters_bitmap::BitMapBackend;
use plotters_svg::SVGBackend;

/// Steps of an SVG's coordinates for each pixel of the page.
const SVG_STEPS: f64 = 20.0;

/// Pixels of a PNG for each pixel of the page: screens are fine nowadays.
pub const PNG_SCALE: usize = 2;

/// Pixels that are drawn for each pixel of a PNG, in both directions.
const SAMPLES: usize = 3;

/// Bytes of a pixel.
const PIXEL: usize = 3;

/// The text of an SVG.
pub fn svg(scene: &Scene) -> Result<String> {
    let mut text = String::new();
    let size = (pixels(scene.width, SVG_STEPS), pixels(scene.height, SVG_STEPS));
    let mut backend = SVGBackend::with_string(&mut text, size);
    paint(scene, &mut backend, SVG_STEPS, true)?;
    drop(backend);
    // The first tag is ours: the size on the page, round joints, and what it is in words.
    let (_, shapes) = text.split_once('>').unwrap_or(("", &text));
    let root = format!(
        "<svg width=\"{}\" height=\"{}\" viewBox=\"0 0 {} {}\" role=\"img\" \
         stroke-linejoin=\"round\" xmlns=\"{NAMESPACE}\">\n<title>{}</title>",
        scene.width,
        scene.height,
        size.0,
        size.1,
        escape(&scene.title),
    );
    Ok(root + shapes)
}

/// What makes a tag one of an SVG.
const NAMESPACE: &str = "http://www.w3.org/2000/svg";

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

/// The bytes of a PNG.
pub fn png(scene: &Scene) -> Result<Vec<u8>> {
    let told = |error| Failure::failed("write a PNG", error);
    let scale = PNG_SCALE * SAMPLES;
    let (width, height) = (large(scene.width, 1), large(scene.height, 1));
    let (wide, high) = (width * scale, height * scale);
    let mut buffer = vec![u8::MAX; wide * high * PIXEL];
    let small = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
    let mut backend = BitMapBackend::with_buffer(&mut buffer, (small(wide), small(high)));
    paint(scene, &mut backend, f64::from(small(scale)), false)?;
    drop(backend);
    let image = means(&buffer, wide);
    let mut bytes = Vec::new();
    let size = (small(width * PNG_SCALE), small(height * PNG_SCALE));
    let mut encoder = png::Encoder::new(&mut bytes, size.0, size.1);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::High);
    let mut writer = encoder.write_header().map_err(told)?;
    writer.write_image_data(&image).map_err(told)?;
    writer.finish().map_err(told)?;
    Ok(bytes)
}

/// Each pixel the mean of a square of pixels of an image `wide` pixels wide.
fn means(image: &[u8], wide: usize) -> Vec<u8> {
    let columns = wide / SAMPLES;
    let rows = image.len() / (wide * PIXEL * SAMPLES);
    let mut means = Vec::with_capacity(columns * rows * PIXEL);
    let mut sums = vec![0_u16; columns * PIXEL];
    for band in image.chunks_exact(wide * PIXEL * SAMPLES) {
        sums.fill(0);
        for row in band.chunks_exact(wide * PIXEL) {
            for (sum, square) in sums.chunks_exact_mut(PIXEL).zip(row.chunks_exact(PIXEL * SAMPLES))
            {
                for pixel in square.chunks_exact(PIXEL) {
                    for (sum, part) in sum.iter_mut().zip(pixel) {
                        *sum += u16::from(*part);
                    }
                }
            }
        }
        let count = u16::try_from(SAMPLES * SAMPLES).unwrap_or(u16::MAX);
        means.extend(sums.iter().map(|sum| u8::try_from(sum / count).unwrap_or(u8::MAX)));
    }
    means
}

/// The same as a whole number of device pixels.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures are a few thousand pixels wide and high"
)]
fn large(size: f64, scale: usize) -> usize {
    size.ceil() as usize * scale
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures are a few thousand pixels wide and high"
)]
fn pixels(size: f64, scale: f64) -> u32 {
    (size * scale).round() as u32
}

#[expect(clippy::cast_possible_truncation, reason = "figures are a few thousand pixels wide")]
fn device(point: Point, scale: f64) -> BackendCoord {
    ((point.0 * scale).round() as i32, (point.1 * scale).round() as i32)
}

/// A colour and a width of lines.
struct Stroke {
    color: BackendColor,
    width: u32,
}

impl BackendStyle for Stroke {
    fn color(&self) -> BackendColor {
        self.color
    }

    fn stroke_width(&self) -> u32 {
        self.width
    }
}

fn ink(color: Color) -> BackendColor {
    BackendColor { alpha: 1.0, rgb: (color.0, color.1, color.2) }
}

/// Draws every shape.
fn paint<B: DrawingBackend>(
    scene: &Scene,
    backend: &mut B,
    scale: f64,
    is_svg: bool,
) -> Result<()> {
    let told = |error| Failure::failed("draw a figure", error);
    let whole = [(0.0, 0.0), (scene.width, scene.height)].map(|corner| device(corner, scale));
    backend
        .draw_rect(whole[0], whole[1], &ink(crate::figures::style::WHITE), true)
        .map_err(told)?;
    for shape in &scene.shapes {
        match shape {
            Shape::Line { points, color, width } => {
                let stroke =
                    Stroke { color: ink(*color), width: pixels(width.max(0.3), scale).max(1) };
                let points = points.iter().map(|point| device(*point, scale));
                if is_svg {
                    backend.draw_path(points, &stroke).map_err(told)?;
                } else {
                    thick_line(backend, points.collect(), &stroke).map_err(told)?;
                }
            }
            Shape::Area { points, color } => {
                let points = points.iter().map(|point| device(*point, scale));
                backend.fill_polygon(points, &ink(*color)).map_err(told)?;
            }
            Shape::Text(text) => {
                let style = Lettering {
                    color: ink(text.color),
                    size: text.size * scale,
                    anchor: text.anchor,
                    upwards: text.upwards,
                };
                // The backend lowers, or for upward texts moves to the right, what it writes.
                let drop = if is_svg { text.size * SVG_DROP } else { 0.0 };
                let (x, y) = text.at;
                let place = if text.upwards { (x - drop, y) } else { (x, y - drop) };
                backend.draw_text(&text.text, &style, device(place, scale)).map_err(told)?;
            }
        }
    }
    backend.present().map_err(told)
}

/// A line with round joints: that of the backend has spikes where a line turns sharply.
fn thick_line<B: DrawingBackend>(
    backend: &mut B,
    points: Vec<BackendCoord>,
    stroke: &Stroke,
) -> Result<(), plotters_backend::DrawingErrorKind<B::ErrorType>> {
    let half = f64::from(stroke.width) / 2.0;
    for pair in points.windows(2) {
        let [from, to] = [pair[0], pair[1]].map(|(x, y)| (f64::from(x), f64::from(y)));
        let length = (to.0 - from.0).hypot(to.1 - from.1);
        if length > 0.0 {
            let across = ((from.1 - to.1) / length * half, (to.0 - from.0) / length * half);
            let corners = [
                (from.0 + across.0, from.1 + across.1),
                (to.0 + across.0, to.1 + across.1),
                (to.0 - across.0, to.1 - across.1),
                (from.0 - across.0, from.1 - across.1),
            ];
            backend.fill_polygon(corners.map(|corner| device(corner, 1.0)), &stroke.color)?;
        }
    }
    let joints = points.len().saturating_sub(1);
    for joint in points.into_iter().take(joints).skip(1) {
        backend.draw_circle(joint, stroke.width / 2, &stroke.color, true)?;
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::figures::scene::{Anchor, Frame};
    use crate::figures::style::INK;

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

    /// The width and the height of a PNG that can be decoded.
    pub fn size_of(bytes: &[u8]) -> (u32, u32) {
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut image = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut image).unwrap();
        assert!(image.iter().any(|byte| *byte != u8::MAX), "something is drawn");
        (info.width, info.height)
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
    fn both_forms_can_be_read_and_are_escaped() {
        let text = svg(&sample()).unwrap();
        check_well_formed(&text);
        assert!(text.contains("a &amp; b") && text.contains("&lt;x&gt;"), "{text}");
        assert!(text.starts_with("<svg width=\"60\" height=\"40\" viewBox=\"0 0 1200 800\""));
        assert!(text.lines().all(|line| line.trim_end() == line), "no blanks at ends of lines");
        assert_eq!(size_of(&png(&sample()).unwrap()), (120, 80));
    }

    #[test]
    fn nothing_of_a_text_becomes_a_tag() {
        assert_eq!(escape("<a b=\"c\">'&\u{1}"), "&lt;a b=&quot;c&quot;&gt;&#39;&amp;\u{fffd}");
    }

    #[test]
    fn pixels_are_means_of_their_samples() {
        let wide = 2 * SAMPLES;
        let mut image = vec![0; wide * SAMPLES * PIXEL];
        image[..PIXEL].copy_from_slice(&[90, 180, 0]);
        assert_eq!(means(&image, wide), [10, 20, 0, 0, 0, 0]);
    }
}
