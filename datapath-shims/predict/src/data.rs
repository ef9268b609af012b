//! Labelled images: the digits that come with the crate, or IDX files such as MNIST's.

use std::path::PathBuf;

/// Bytes of the largest IDX file: MNIST's training images are 47 MB.
pub const MAX_IDX_BYTES: u64 = 64 << 20;
/// Pixels along each side of what a predictor sees.
pub const SIDE: usize = 8;
/// Inputs of a predictor of images.
pub const PIXELS: usize = SIDE * SIDE;
/// Classes of digits.
pub const CLASSES: usize = 10;
/// Largest side of an image in a file, pixels.
const MAX_SIDE: usize = 64;
/// Every so many images one is for the test, and one for validation.
const PART: usize = 5;

const IMAGES_MAGIC: u32 = 0x0803;
const LABELS_MAGIC: u32 = 0x0801;

const DIGITS_IMAGES: &[u8] = include_bytes!("../data/digits/images.idx3-ubyte");
const DIGITS_LABELS: &[u8] = include_bytes!("../data/digits/labels.idx1-ubyte");
/// The largest pixel of the built-in digits.
const DIGITS_MAX: u8 = 16;

/// Reasons why files are no labelled images.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DataError {
    /// A file does not begin as an IDX file of its kind.
    #[error("no IDX file of {what}: it begins with {found:#x}, not {expected:#x}")]
    Magic { what: &'static str, found: u32, expected: u32 },
    /// A file is shorter or longer than its sizes say.
    #[error("{what}: {found} bytes where its sizes say {expected}")]
    Length { what: &'static str, found: usize, expected: usize },
    /// Images are too small or too large.
    #[error("images of {rows} x {columns} pixels, {SIDE} to {MAX_SIDE} either way are read")]
    Side { rows: usize, columns: usize },
    /// No images are given, or another number of labels.
    #[error("{images} images and {labels} labels")]
    Count { images: usize, labels: usize },
    /// A label is no digit.
    #[error("label {found} of image {image}, 0 to 9 are read")]
    Label { image: usize, found: u8 },
    /// A file is not read.
    #[error("{}: {why}", file.display())]
    File { file: PathBuf, why: String },
}

/// Images of 8 x 8 pixels and the class of each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Images {
    /// The images' pixels, one image after the other.
    pub pixels: Vec<u8>,
    pub labels: Vec<u8>,
    /// The largest value of a pixel.
    pub max: u8,
}

/// Parts of a data set, disjoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Split {
    /// Images that predictors learn from.
    pub train: Images,
    /// Images that trained predictors are measured on.
    pub validation: Images,
    /// Images for questions to a server, which no predictor has seen.
    pub test: Images,
}

impl Images {
    /// The digits that come with the crate.
    ///
    /// # Errors
    /// None, unless the crate's own files are broken.
    pub fn digits() -> Result<Images, DataError> {
        let images = Images::parse(DIGITS_IMAGES, DIGITS_LABELS)?;
        Ok(Images { max: DIGITS_MAX, ..images })
    }

    /// Reads the content of two IDX files, of images and of labels. Larger images are brought down to 8 x 8 by means over areas.
    ///
    /// # Errors
    /// The first thing that is wrong. Never panics.
    pub fn parse(images: &[u8], labels: &[u8]) -> Result<Images, DataError> {
        let ([count, rows, columns], content) = sizes("images", IMAGES_MAGIC, images)?;
        let ([labelled], labels) = sizes("labels", LABELS_MAGIC, labels)?;
        if ![rows, columns].iter().all(|side| (SIDE..=MAX_SIDE).contains(side)) {
            return Err(DataError::Side { rows, columns });
        }
        let size = rows * columns;
        let length = |what, found: usize, expected: usize| {
            if found == expected { Ok(()) } else { Err(DataError::Length { what, found, expected }) }
        };
        length("images", content.len(), count.saturating_mul(size))?;
        length("labels", labels.len(), labelled)?;
        if count == 0 || count != labelled {
            return Err(DataError::Count { images: count, labels: labelled });
        }
        if let Some(image) = labels.iter().position(|label| usize::from(*label) >= CLASSES) {
            return Err(DataError::Label { image, found: labels[image] });
        }
        let mut pixels = Vec::with_capacity(count * PIXELS);
        content.chunks_exact(size).for_each(|image| shrink(image, rows, columns, &mut pixels));
        Ok(Images { pixels, labels: labels.to_vec(), max: u8::MAX })
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// An image and what it shows; `None` beyond the last.
    pub fn get(&self, n: usize) -> Option<(&[u8], u8)> {
        Some((self.pixels.get(n * PIXELS..(n + 1) * PIXELS)?, *self.labels.get(n)?))
    }

    /// Splits the images: of every five, three for training, one for validation, one for the test.
    pub fn split(&self) -> Split {
        let part = |of: &[usize]| {
            let chosen = (0..self.len()).filter(|n| of.contains(&(n % PART)));
            let mut images = Images { pixels: Vec::new(), labels: Vec::new(), max: self.max };
            for (pixels, label) in chosen.filter_map(|n| self.get(n)) {
                images.pixels.extend(pixels);
                images.labels.push(label);
            }
            images
        };
        Split { train: part(&[0, 1, 2]), validation: part(&[3]), test: part(&[4]) }
    }
}

/// The sizes in the head of an IDX file, and what follows.
fn sizes<'a, const N: usize>(
    what: &'static str,
    expected: u32,
    file: &'a [u8],
) -> Result<([usize; N], &'a [u8]), DataError> {
    let short = DataError::Length { what, found: file.len(), expected: 4 * (N + 1) };
    let (magic, mut rest) = file.split_first_chunk().ok_or_else(|| short.clone())?;
    let found = u32::from_be_bytes(*magic);
    if found != expected {
        return Err(DataError::Magic { what, found, expected });
    }
    let mut sizes = [0; N];
    for size in &mut sizes {
        let (number, others) = rest.split_first_chunk().ok_or_else(|| short.clone())?;
        (*size, rest) = (u32::from_be_bytes(*number) as usize, others);
    }
    Ok((sizes, rest))
}

/// Appends the image as 8 x 8 pixels: each the rounded mean of its part of the image.
fn shrink(image: &[u8], rows: usize, columns: usize, to: &mut Vec<u8>) {
    let part = |n: usize, of: usize| n * of / SIDE..(n + 1) * of / SIDE;
    for row in 0..SIDE {
        for column in 0..SIDE {
            let (mut sum, mut count) = (0, 0);
            for line in part(row, rows).filter_map(|r| image.get(r * columns..(r + 1) * columns)) {
                for pixel in line.get(part(column, columns)).unwrap_or_default() {
                    sum += u32::from(*pixel);
                    count += 1;
                }
            }
            to.push(((sum + count / 2) / count.max(1)) as u8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idx(magic: u32, sizes: &[u32], content: &[u8]) -> Vec<u8> {
        let head = std::iter::once(&magic).chain(sizes).flat_map(|n| n.to_be_bytes());
        head.chain(content.iter().copied()).collect()
    }

    #[test]
    fn the_digits_are_those_of_the_package() {
        let digits = Images::digits().unwrap();
        assert_eq!((digits.len(), digits.max), (1_797, 16));
        // The first row of the package's first image, and the number of each digit in its description.
        let (first, label) = digits.get(0).unwrap();
        assert_eq!((&first[..8], label), (&[0, 0, 5, 13, 9, 1, 0, 0][..], 0));
        let of = |digit| digits.labels.iter().filter(|label| **label == digit).count();
        let counts: Vec<usize> = (0..10).map(of).collect();
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        assert!(digits.pixels.iter().all(|pixel| *pixel <= 16) && digits.pixels.contains(&16));
    }

    #[test]
    fn the_parts_are_disjoint_and_whole() {
        let digits = Images::digits().unwrap();
        let Split { train, validation, test } = digits.split();
        assert_eq!(train.len() + validation.len() + test.len(), digits.len());
        assert_eq!(test.get(0), digits.get(4));
        assert_eq!(validation.get(1), digits.get(8));
        assert_eq!(train.get(3), digits.get(5));
    }

    #[test]
    fn larger_images_are_brought_down_by_means() {
        // 16 x 16: each pixel is the mean of four.
        let mut image = vec![0; 256];
        (image[0], image[1], image[16], image[17]) = (10, 20, 30, 41);
        let images = Images::parse(&idx(0x803, &[1, 16, 16], &image), &idx(0x801, &[1], &[7])).unwrap();
        assert_eq!(images.get(0).unwrap().0[..2], [25, 0]);
        // 28 x 28, as MNIST's: each pixel belongs to one part, so that an even image stays even.
        let even = idx(0x803, &[2, 28, 28], &[99; 2 * 784]);
        let images = Images::parse(&even, &idx(0x801, &[2], &[1, 2])).unwrap();
        assert_eq!((images.pixels, images.labels), (vec![99; 128], vec![1, 2]));
    }

    #[test]
    fn what_is_no_data_set_is_refused() {
        let images = idx(0x803, &[1, 8, 8], &[1; 64]);
        let labels = idx(0x801, &[1], &[3]);
        assert!(Images::parse(&images, &labels).is_ok());
        let refused = |images: &[u8], labels: &[u8]| Images::parse(images, labels).unwrap_err();
        assert!(matches!(refused(&[], &labels), DataError::Length { what: "images", found: 0, .. }));
        assert!(matches!(refused(&labels, &labels), DataError::Magic { found: 0x801, .. }));
        assert!(matches!(refused(&images[..70], &labels), DataError::Length { found: 54, expected: 64, .. }));
        let huge = idx(0x803, &[u32::MAX, 64, 64], &[]);
        assert!(matches!(refused(&huge, &labels), DataError::Length { .. }));
        let wide = idx(0x803, &[1, 8, 65], &[1; 520]);
        assert_eq!(refused(&wide, &labels), DataError::Side { rows: 8, columns: 65 });
        let two = idx(0x801, &[2], &[3, 3]);
        assert_eq!(refused(&images, &two), DataError::Count { images: 1, labels: 2 });
        let ten = idx(0x801, &[1], &[10]);
        assert_eq!(refused(&images, &ten), DataError::Label { image: 0, found: 10 });
    }
}
