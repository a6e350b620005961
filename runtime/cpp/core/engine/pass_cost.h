// What a pass of the target costs by its rows: a line through what was measured.
#pragma once

#include <algorithm>

namespace specc {

// Least squares in which the past fades. Where all passes had about as many rows, what one more costs is not known, and
// taken to be nothing: then more are tried, and it is.
class PassCost {
 public:
  void observe(double rows, double measured) {
    // A pass is often late, never early; the first ones touch memory for the first time.
    const double usual = seconds(rows);
    const double taken = count_ > kFew && usual > 0 ? std::min(measured, kOutlier * usual) : measured;
    for (double* sum : {&count_, &rows_, &squares_, &seconds_, &products_}) *sum *= kKept;
    count_ += 1;
    rows_ += rows;
    squares_ += rows * rows;
    seconds_ += taken;
    products_ += rows * taken;
  }

  bool known() const { return count_ > 0; }
  // Of one more row.
  double of_row() const {
    if (!known()) return 0;
    const double mean = rows_ / count_, usual = seconds_ / count_;
    const double variance = std::max(0.0, squares_ / count_ - mean * mean);
    const double together = products_ / count_ - mean * usual;
    return std::clamp(together / (variance + kRidge), 0.0, usual / mean);
  }
  double seconds(double rows) const {
    return known() ? seconds_ / count_ + of_row() * (rows - rows_ / count_) : 0;
  }

 private:
  static constexpr double kKept = 0.97, kFew = 4, kOutlier = 1.5;
  static constexpr double kRidge = 0.05;  // rows squared

  double count_ = 0, rows_ = 0, squares_ = 0, seconds_ = 0, products_ = 0;
};

}  // namespace specc
