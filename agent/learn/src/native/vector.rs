//! Runs code with the vector instructions that the machine has.
//!
//! The bits do not depend on them: the code below works on lanes side by side and never adds up across lanes. Nor does
//! rustc contract a product and a sum into one rounding.
#![allow(unsafe_code)]

/// Runs `f`, compiled for AVX2 where there is AVX2. What `f` calls has to be `#[inline(always)]` to profit.
#[inline(always)]
pub(super) fn wide<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn avx2<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, and the operating system keeps its registers.
            return unsafe { avx2(f) };
        }
    }
    f()
}
