// Runs the classifier of examples/packages/classifier.py; no crate is needed.
//
//   rustc --edition=2021 classify.rs -l mlcc_runtime -L FOLDER_OF_THE_LIBRARY
//   ./classify classifier.mlcc image.f32
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr::{null, null_mut};

#[repr(C)]
struct Error {
    status: c_int,
    text: [c_char; 508],
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    dtype: c_int,
    rank: i32,
    sizes: *const i64,
    strides: *const i64,
}

#[repr(C)]
struct TensorInfo {
    name: *const c_char,
    dtype: c_int,
    rank: i32,
    sizes: *const i64,
    strides: *const i64,
    size_texts: *const *const c_char,
}

const F32: c_int = 8;

extern "C" {
    fn mlcc_package_open(path: *const c_char, flags: u32, package: *mut *mut c_void, error: *mut Error) -> c_int;
    fn mlcc_package_close(package: *mut c_void);
    fn mlcc_package_input(package: *const c_void, index: usize, info: *mut TensorInfo) -> c_int;
    fn mlcc_package_output(package: *const c_void, index: usize, info: *mut TensorInfo) -> c_int;
    fn mlcc_context_create(
        package: *const c_void,
        options: *const c_void,
        context: *mut *mut c_void,
        error: *mut Error,
    ) -> c_int;
    fn mlcc_context_destroy(context: *mut c_void);
    fn mlcc_run(
        context: *mut c_void,
        inputs: *const Tensor,
        num_inputs: usize,
        outputs: *mut Tensor,
        num_outputs: usize,
        error: *mut Error,
    ) -> c_int;
}

fn check(status: c_int, error: &Error) {
    if status != 0 {
        let text = unsafe { CStr::from_ptr(error.text.as_ptr()) };
        eprintln!("{}", text.to_string_lossy());
        std::process::exit(1);
    }
}

fn info(describe: impl Fn(*mut TensorInfo) -> c_int) -> TensorInfo {
    let mut info = TensorInfo {
        name: null(),
        dtype: 0,
        rank: 0,
        sizes: null(),
        strides: null(),
        size_texts: null(),
    };
    assert_eq!(describe(&mut info), 0, "there is no such tensor");
    info
}

fn count(info: &TensorInfo) -> usize {
    let sizes = unsafe { std::slice::from_raw_parts(info.sizes, info.rank as usize) };
    sizes.iter().product::<i64>() as usize
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let path = CString::new(arguments[1].as_str()).unwrap();
    let bytes = std::fs::read(&arguments[2]).unwrap();
    let mut image: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let mut error = Error { status: 0, text: [0; 508] };
    let mut package = null_mut();
    let mut context = null_mut();
    unsafe {
        check(mlcc_package_open(path.as_ptr(), 0, &mut package, &mut error), &error);
        check(mlcc_context_create(package, null(), &mut context, &mut error), &error);
        let input_info = info(|one| mlcc_package_input(package, 0, one));
        let output_info = info(|one| mlcc_package_output(package, 0, one));
        assert_eq!(image.len(), count(&input_info), "the image has another size");
        let mut scores = vec![0f32; count(&output_info)];
        let tensor = |data: *mut f32, of: &TensorInfo| Tensor {
            data: data as *mut c_void,
            dtype: F32,
            rank: of.rank,
            sizes: of.sizes,
            strides: null(),
        };
        let input = tensor(image.as_mut_ptr(), &input_info);
        let mut output = tensor(scores.as_mut_ptr(), &output_info);
        check(mlcc_run(context, &input, 1, &mut output, 1, &mut error), &error);
        let best = (0..scores.len()).max_by(|a, b| scores[*a].total_cmp(&scores[*b])).unwrap();
        println!("class {}, score {:.4}", best, scores[best]);
        mlcc_context_destroy(context);
        mlcc_package_close(package);
    }
}
