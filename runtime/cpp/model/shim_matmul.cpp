// mm, addmm and bmm for the few products that are not specc::linear. Plain loops, one sequential FMA chain over k for
// each element of the result, so that a row's bits do not depend on how many rows there are.
#include "error.h"
#include "parallel.h"
#include "shim.h"
#include "tensor.h"

using specc::kOk;
using specc::Status;
using specc::Tensor;

namespace {

template <class T>
struct Matrix {
  T* data;
  int64_t rows, columns, row_stride, column_stride;
  T& at(int64_t row, int64_t column) const { return data[row * row_stride + column * column_stride]; }
};

template <class T>
Matrix<T> matrix(const Tensor& tensor, int64_t batch = 0) {
  const int first = tensor.ndim - 2;
  T* data = tensor.data<T>() + (first > 0 ? batch * tensor.strides[0] : 0);
  return {data, tensor.sizes[first], tensor.sizes[first + 1], tensor.strides[first], tensor.strides[first + 1]};
}

// out := alpha * a b + beta * bias. `bias` has the shape of `out`, its strides 0 where it is broadcast.
template <class T>
void multiply(const Matrix<T>& out, const Matrix<T>& a, const Matrix<T>& b, const Matrix<T>* bias, T beta, T alpha) {
  constexpr int64_t kBlock = 64;  // columns in flight: enough independent chains to fill vectors and pipelines
  for (int64_t row = 0; row < out.rows; row++) {
    for (int64_t first = 0; first < out.columns; first += kBlock) {
      const int64_t count = first + kBlock < out.columns ? kBlock : out.columns - first;
      T sums[kBlock] = {};
      for (int64_t k = 0; k < a.columns; k++) {
        const T left = a.at(row, k);
        const T* right = &b.at(k, first);
        if (b.column_stride == 1) {
          for (int64_t j = 0; j < count; j++) sums[j] += left * right[j];
        } else {
          for (int64_t j = 0; j < count; j++) sums[j] += left * right[j * b.column_stride];
        }
      }
      for (int64_t j = 0; j < count; j++) {
        T value = alpha * sums[j];
        if (bias != nullptr && beta != T{0}) value += beta * bias->at(row, first + j);
        out.at(row, first + j) = value;
      }
    }
  }
}

Status check(const char* what, const Tensor& out, const Tensor& a, const Tensor& b, int ndim) {
  if (out.dtype != a.dtype || a.dtype != b.dtype || (a.dtype != SPECC_F32 && a.dtype != SPECC_F64)) {
    return specc::fail("%s of %s and %s: only f32 and f64 are supported", what, specc::dtype_name(a.dtype),
                       specc::dtype_name(b.dtype));
  }
  bool fits = out.ndim == ndim && a.ndim == ndim && b.ndim == ndim;
  fits = fits && a.size(1) == b.size(2) && out.size(2) == a.size(2) && out.size(1) == b.size(1);
  if (ndim == 3) fits = fits && a.sizes[0] == b.sizes[0] && out.sizes[0] == a.sizes[0];
  return fits ? kOk : specc::fail("%s: the shapes do not fit", what);
}

template <class T>
void bmm(const Tensor& out, const Tensor& a, const Tensor& b) {
  const int64_t batches = out.sizes[0];
  const int64_t work = out.numel() * a.size(1);
  const int64_t parts = batches < specc::parts_for(work, 32768) ? batches : specc::parts_for(work, 32768);
  specc::parallel(parts, [&](int32_t part) {
    const specc::Share mine = specc::share(batches, part, parts);
    for (int64_t i = mine.begin; i < mine.end; i++) {
      multiply(matrix<T>(out, i), matrix<T>(a, i), matrix<T>(b, i), static_cast<Matrix<T>*>(nullptr), T{0}, T{1});
    }
  });
}

template <class T>
void mm(const Tensor& out, const Tensor& a, const Tensor& b, const Matrix<T>* bias, double beta, double alpha) {
  Matrix<T> whole = matrix<T>(out);
  const int64_t parts = specc::parts_for(out.numel() * a.size(1), 32768);
  specc::parallel(parts, [&](int32_t part) {
    const specc::Share mine = specc::share(whole.columns, part, parts);
    Matrix<T> target = whole;
    Matrix<T> right = matrix<T>(b);
    target.data += mine.begin * target.column_stride;
    right.data += mine.begin * right.column_stride;
    target.columns = right.columns = mine.end - mine.begin;
    Matrix<T> addend{};
    if (bias != nullptr) {
      addend = *bias;
      addend.data += mine.begin * addend.column_stride;
    }
    multiply(target, matrix<T>(a), right, bias == nullptr ? nullptr : &addend, static_cast<T>(beta),
             static_cast<T>(alpha));
  });
}

template <class T>
Status addmm(const Tensor& out, const Tensor& bias, const Tensor& a, const Tensor& b, double beta, double alpha) {
  Matrix<T> spread{bias.data<T>(), out.sizes[0], out.sizes[1], 0, 0};
  if (bias.dtype != out.dtype || bias.ndim < 1 || bias.ndim > 2) return specc::fail("addmm: a bias of another kind");
  const bool by_column = bias.size(1) == out.sizes[1];
  const bool by_row = bias.ndim == 2 && bias.sizes[0] == out.sizes[0];
  if ((!by_column && bias.size(1) != 1) || (bias.ndim == 2 && !by_row && bias.sizes[0] != 1)) {
    return specc::fail("addmm: the bias does not fit");
  }
  if (by_column) spread.column_stride = bias.strides[bias.ndim - 1];
  if (by_row) spread.row_stride = bias.strides[0];
  mm<T>(out, a, b, &spread, beta, alpha);
  return kOk;
}

}  // namespace

SPECC_SHIM(aoti_torch_cpu_mm_out)(Tensor* out, Tensor* a, Tensor* b) -> Status {
  if (check("mm", *out, *a, *b, 2) != kOk) return 1;
  if (a->dtype == SPECC_F32) {
    mm<float>(*out, *a, *b, nullptr, 0, 1);
  } else {
    mm<double>(*out, *a, *b, nullptr, 0, 1);
  }
  return kOk;
}

SPECC_SHIM(aoti_torch_cpu_addmm_out)
(Tensor* out, Tensor* bias, Tensor* a, Tensor* b, double beta, double alpha) -> Status {
  if (check("addmm", *out, *a, *b, 2) != kOk) return 1;
  return a->dtype == SPECC_F32 ? addmm<float>(*out, *bias, *a, *b, beta, alpha)
                               : addmm<double>(*out, *bias, *a, *b, beta, alpha);
}

SPECC_SHIM(aoti_torch_cpu_bmm_out)(Tensor* out, Tensor* a, Tensor* b) -> Status {
  if (check("bmm", *out, *a, *b, 3) != kOk) return 1;
  if (a->dtype == SPECC_F32) {
    bmm<float>(*out, *a, *b);
  } else {
    bmm<double>(*out, *a, *b);
  }
  return kOk;
}
