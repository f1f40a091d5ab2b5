//! The C library from the outside: its header, C programs and the Go module.
//!
//! The tests compile C programs against `include/extant.h` and the libraries beside this test's executable,
//! where cargo puts them before it runs this test.

use std::ffi::OsStr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

/// What a program needs besides `libextant.a`, as `rustc --print native-static-libs` prints it.
const STATIC_LIBS: &[&str] = &["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"];

/// The folder of this package.
fn package() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A library that cargo built.
fn library(name: &str) -> PathBuf {
    let exe = env::current_exe().unwrap();
    let library = exe.parent().unwrap().join(name);
    assert!(library.is_file(), "{} is missing", library.display());
    library
}

/// Whether a program is installed. Says that the test is skipped if it is not.
fn has(program: &str) -> bool {
    let found =
        env::split_paths(&env::var_os("PATH").unwrap_or_default()).any(|dir| dir.join(program).is_file());
    if !found {
        println!("skipped: not installed: {program}");
    }
    found
}

fn succeeded(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// A directory with the libraries under the names for linking and running, and with compiled programs.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["libextant.so", "libextant.so.0"] {
            symlink(library("libextant_capi.so"), dir.path().join(name)).unwrap();
        }
        Self { dir }
    }

    /// Compiles a program of the package. `link` selects the library.
    fn compile(&self, compiler: &str, source: &Path, name: &str, link: &[&OsStr]) -> PathBuf {
        let program = self.dir.path().join(name);
        let mut command = Command::new(compiler);
        command.args(["-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
        command.arg("-I").arg(package().join("include")).arg(source).arg("-o").arg(&program).args(link);
        succeeded(&mut command);
        program
    }

    fn shared(&self, source: &str, name: &str) -> PathBuf {
        let dir = self.dir.path().as_os_str();
        let link = [OsStr::new("-std=c11"), "-L".as_ref(), dir, "-lextant".as_ref(), "-lpthread".as_ref()];
        self.compile("cc", &package().join(source), name, &link)
    }

    /// A directory for the files of one run.
    fn room(&self, name: &str) -> PathBuf {
        let room = self.dir.path().join(name);
        fs::create_dir(&room).unwrap();
        room
    }

    /// A command that finds the shared library.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.dir.path());
        command
    }
}

/// The header as cbindgen makes it, without the spaces that it puts between `*` and a name.
fn generated_header() -> String {
    let config = cbindgen::Config::from_file(package().join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_crate(package()).with_config(config).generate().unwrap();
    let mut bytes = Vec::new();
    bindings.write(&mut bytes);
    let mut header = String::new();
    for line in String::from_utf8(bytes).unwrap().lines() {
        let is_comment = line.trim_start().starts_with(['*', '/']);
        if is_comment {
            header.push_str(line);
        } else {
            let mut line = line.replace("* ", "*").replace("*const ", "* const ");
            if !line.starts_with("typedef struct") && !line.starts_with("typedef enum") {
                line = line.replace("struct extant_", "extant_").replace("enum extant_", "extant_");
            }
            header.push_str(&line);
        }
        header.push('\n');
    }
    header
}

#[test]
fn header_is_what_the_sources_say() {
    let path = package().join("include/extant.h");
    let header = generated_header();
    if env::var_os("EXTANT_BLESS").is_some() {
        fs::write(&path, &header).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let differs = committed.lines().zip(header.lines()).position(|(old, new)| old != new);
    assert!(
        committed == header,
        "include/extant.h is outdated from line {:?} on: EXTANT_BLESS=1 cargo test -p extant-capi header",
        differs.map(|line| line + 1)
    );
}

/// Each exported function has the version `libextant.so.0`, so that a program that needs a later version of
/// the interface is refused when it starts, and not in the middle of its work. Nothing else is exported.
#[test]
fn symbols_have_versions() {
    let output =
        succeeded(Command::new("nm").args(["-D", "--defined-only"]).arg(library("libextant_capi.so")));
    let text = String::from_utf8(output.stdout).unwrap();
    let symbols = || text.lines().filter_map(|line| line.rsplit(' ').next());
    assert!(symbols().any(|symbol| symbol == "extant_fs_open@@libextant.so.0"), "{text}");
    for symbol in symbols().filter(|symbol| *symbol != "libextant.so.0") {
        assert!(symbol.starts_with("extant_") && symbol.ends_with("@@libextant.so.0"), "{symbol}");
    }
}

/// A C++ program can include the header and link the library.
#[test]
fn header_is_valid_in_cxx() {
    if !has("c++") {
        return;
    }
    let bench = Bench::new();
    let source = bench.dir.path().join("main.cc");
    fs::write(&source, "#include <extant.h>\nint main() { return extant_version()[0] == '0' ? 0 : 1; }\n")
        .unwrap();
    let link = ["-std=c++11".as_ref(), "-L".as_ref(), bench.dir.path().as_os_str(), "-lextant".as_ref()];
    let program = bench.compile("c++", &source, "main", &link);
    succeeded(&mut bench.command(program));
}

/// Every function, with its errors; storage in memory; two threads. Valgrind finds leaks and invalid
/// accesses.
#[test]
fn c_program_uses_every_function() {
    let bench = Bench::new();
    let program = bench.shared("tests/c/all.c", "all");
    succeeded(bench.command(&program).arg(bench.room("plain")));
    if has("valgrind") {
        let mut command = bench.command("valgrind");
        // Without what is only possibly lost: the main thread's own data of Rust's standard library.
        command.args(["-q", "--leak-check=full", "--errors-for-leak-kinds=definite", "--error-exitcode=9"]);
        command.arg(&program);
        succeeded(command.arg(bench.room("valgrind")));
    }
}

/// The same program linked statically, with the address sanitizer in its own code.
#[test]
fn c_program_links_statically() {
    let bench = Bench::new();
    let archive = library("libextant_capi.a");
    let mut link = vec!["-std=c11".as_ref(), "-fsanitize=address".as_ref(), archive.as_os_str()];
    link.extend(STATIC_LIBS.iter().map(OsStr::new));
    let program = bench.compile("cc", &package().join("tests/c/all.c"), "all", &link);
    succeeded(Command::new(program).arg(bench.room("static")));
}

/// docs/c.md shows this output.
#[test]
fn tour_prints_what_the_page_shows() {
    let bench = Bench::new();
    let program = bench.shared("examples/tour.c", "tour");
    let room = bench.room("files");
    fs::create_dir(room.join("tree")).unwrap();
    fs::write(room.join("tree/motd"), "hello\n").unwrap();
    for (path, mode) in [("tree", 0o755), ("tree/motd", 0o644)] {
        fs::set_permissions(room.join(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    let output = succeeded(bench.command(program).args(["tree", "tour.img"]).current_dir(&room));
    let output = String::from_utf8(output.stdout).unwrap();
    let page = fs::read_to_string(package().join("../../../docs/c.md")).unwrap();
    assert!(page.contains(&output), "docs/c.md does not show this output:\n{output}");
}

/// Every exported function is in the table of docs/c.md and is called by the test program.
#[test]
fn page_and_test_have_every_function() {
    let header = fs::read_to_string(package().join("include/extant.h")).unwrap();
    let page = fs::read_to_string(package().join("../../../docs/c.md")).unwrap();
    let program = fs::read_to_string(package().join("tests/c/all.c")).unwrap();
    let mut count = 0;
    for line in
        header.lines().filter(|line| !line.starts_with([' ', '/', '*']) && !line.starts_with("typedef"))
    {
        let Some((before, _)) = line.split_once('(') else { continue };
        let name = before.rsplit([' ', '*']).next().unwrap();
        if name.starts_with("extant_") {
            count += 1;
            assert!(page.contains(&format!("`{name}`")), "docs/c.md lacks {name}");
            assert!(program.contains(&format!("{name}(")), "tests/c/all.c does not call {name}");
        }
    }
    assert!(count > 50, "{count} functions");
}

/// The pkg-config template has the flags that the tests link with.
#[test]
fn pkg_config_template_has_the_static_libraries() {
    let template = fs::read_to_string(package().join("extant.pc.in")).unwrap();
    for library in STATIC_LIBS.iter().filter(|library| **library != "-lc") {
        assert!(template.contains(library), "extant.pc.in lacks {library}");
    }
}

#[test]
fn go_module_passes_its_tests() {
    if !has("go") {
        return;
    }
    let bench = Bench::new();
    let mut command = bench.command("go");
    // No module besides the standard library is needed, so nothing is fetched.
    command.args(["test", "-count=1", "./..."]).current_dir(package().join("../../../bindings/go"));
    command.env("CGO_CFLAGS", format!("-O1 -I{}", package().join("include").display()));
    command.env("CGO_LDFLAGS", format!("-L{}", bench.dir.path().display()));
    command.envs([
        ("CGO_ENABLED", "1"),
        ("GOFLAGS", "-mod=mod"),
        ("GOPROXY", "off"),
        ("GOTOOLCHAIN", "local"),
    ]);
    if env::var_os("HOME").is_none() {
        command.env("GOCACHE", bench.room("gocache"));
    }
    succeeded(&mut command);
}
