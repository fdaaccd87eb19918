//! Settings of the accelerators' runtime: compiled kernels are kept on disk, so that a process of its own for each probe
//! does not compile all of them again.

/// Sets the runtime up, once in a process, before any device is used. What `cubecl.toml` or the environment say otherwise
/// stays: only what they leave open is decided here.
#[cfg(feature = "device-runtime")]
pub fn configure() {
    find_libdevice();
    use burn::cubecl::config::cache::CacheConfig;
    use burn::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    config.compilation.cache = true;
    if matches!(config.environment.path, CacheConfig::Target) {
        // The user's cache folder, wherever this was started: the default is a folder of the Rust project around, if any.
        config.environment.path = CacheConfig::Global;
    }
    // Something that was set before by a user's program is the user's business.
    CubeClRuntimeConfig::try_set(config);
}

/// Where the CUDA toolkit is looked for, whose libdevice holds the functions that cards have no instruction for: erf,
/// tanh. The runtime itself looks at `CUDA_PATH` and where the toolkit installs itself, no further.
#[cfg(feature = "device-runtime")]
fn find_libdevice() {
    use std::path::{Path, PathBuf};
    const LIBDEVICE: &str = "nvvm/libdevice/libdevice.10.bc";
    let has = |root: &Path| root.join(LIBDEVICE).is_file();
    let usual = ["/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda", "/usr"];
    if std::env::var_os("CUDA_PATH").is_some() || usual.iter().any(|root| has(Path::new(root))) {
        return;
    }
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let mut roots: Vec<PathBuf> = ["CUDA_HOME", "CUDA_ROOT", "CONDA_PREFIX"].into_iter().filter_map(variable).collect();
    let prefixes = [
        variable("VIRTUAL_ENV"),
        variable("CONDA_PREFIX"),
        variable("HOME").map(|home| home.join(".local")),
        Some("/usr/local".into()),
        Some("/usr".into()),
    ];
    for prefix in prefixes.into_iter().flatten() {
        let libraries = std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
        for python in libraries.filter(|entry| entry.file_name().to_string_lossy().starts_with("python")) {
            for packages in ["site-packages", "dist-packages"] {
                roots.push(python.path().join(packages).join("nvidia/cuda_nvcc"));
                roots.push(python.path().join(packages).join("nvidia/cu13"));
            }
        }
    }
    if let Some(root) = roots.into_iter().find(|root| has(root)) {
        // SAFETY: called first thing in the worker, before any thread is started that could read the environment.
        unsafe { std::env::set_var("CUDA_PATH", root) };
    }
}

/// Nothing to set up in a build without accelerators.
#[cfg(not(feature = "device-runtime"))]
pub fn configure() {}
