//! The choice of a vector kernel, by what the processor can do.

/// A vector kernel that this processor can run. All kernels give the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kernel(Code);

/// Kernels from slowest to fastest. Only [`Kernel::available`] makes those that need processor features.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Code {
    Portable,
    #[cfg(all(feature = "std", target_arch = "x86_64"))]
    Avx2,
    #[cfg(all(feature = "std", target_arch = "x86_64"))]
    Avx512,
}

impl Kernel {
    /// The kernel that runs on every processor.
    pub const PORTABLE: Kernel = Kernel(Code::Portable);

    /// Lists the kernels that this processor runs, the fastest last.
    pub fn available() -> impl Iterator<Item = Kernel> {
        #[cfg(all(feature = "std", target_arch = "x86_64"))]
        let vectors = [
            std::arch::is_x86_feature_detected!("avx2").then_some(Kernel(Code::Avx2)),
            avx512().then_some(Kernel(Code::Avx512)),
        ];
        #[cfg(not(all(feature = "std", target_arch = "x86_64")))]
        let vectors = [None; 0];
        core::iter::once(Kernel::PORTABLE).chain(vectors.into_iter().flatten())
    }

    /// The fastest kernel that this processor runs.
    pub fn best() -> Kernel {
        Kernel::available().last().unwrap_or(Kernel::PORTABLE)
    }

    /// The kernel's name: `portable`, `AVX2` or `AVX-512`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Code::Portable => "portable",
            #[cfg(all(feature = "std", target_arch = "x86_64"))]
            Code::Avx2 => "AVX2",
            #[cfg(all(feature = "std", target_arch = "x86_64"))]
            Code::Avx512 => "AVX-512",
        }
    }

    pub(crate) fn code(self) -> Code {
        self.0
    }
}

/// Whether this processor has the features that the AVX-512 kernel uses.
#[cfg(all(feature = "std", target_arch = "x86_64"))]
fn avx512() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512vl")
        && std::arch::is_x86_feature_detected!("avx512vnni")
        && std::arch::is_x86_feature_detected!("popcnt")
}
