#pragma once

#include <oneapi/dnnl/dnnl.hpp>

// Differences between oneDNN 2.x, which makes a primitive's description in two steps, and 3.x,
// which makes it in one. Everything else that Starling uses is the same.
namespace starling::cpu::dnnl_compat {

struct ConvolutionDescs {
  dnnl::memory::desc src, weights, bias, dst;  ///< a zero bias means none
  dnnl::memory::dims strides, dilates, padding;
};

#if DNNL_VERSION_MAJOR >= 3

inline dnnl::convolution_forward::primitive_desc forward(const dnnl::engine& engine,
                                                         const ConvolutionDescs& d,
                                                         const dnnl::primitive_attr& attr) {
  return {engine,
          dnnl::prop_kind::forward_training,
          dnnl::algorithm::convolution_direct,
          d.src,
          d.weights,
          d.bias,
          d.dst,
          d.strides,
          d.dilates,
          d.padding,
          d.padding,
          attr};
}
inline dnnl::convolution_backward_data::primitive_desc backward_data(
    const dnnl::engine& engine, const ConvolutionDescs& d,
    const dnnl::convolution_forward::primitive_desc& hint, const dnnl::primitive_attr& attr) {
  return {engine,    dnnl::algorithm::convolution_direct,
          d.src,     d.weights,
          d.dst,     d.strides,
          d.dilates, d.padding,
          d.padding, hint,
          attr};
}
inline dnnl::convolution_backward_weights::primitive_desc backward_weights(
    const dnnl::engine& engine, const ConvolutionDescs& d,
    const dnnl::convolution_forward::primitive_desc& hint, const dnnl::primitive_attr& attr) {
  return {engine,    dnnl::algorithm::convolution_direct,
          d.src,     d.weights,
          d.bias,    d.dst,
          d.strides, d.dilates,
          d.padding, d.padding,
          hint,      attr};
}
inline dnnl::matmul::primitive_desc matmul(const dnnl::engine& engine, const dnnl::memory::desc& a,
                                           const dnnl::memory::desc& b,
                                           const dnnl::memory::desc& bias,
                                           const dnnl::memory::desc& c,
                                           const dnnl::primitive_attr& attr) {
  return {engine, a, b, bias, c, attr};
}

#else

inline dnnl::convolution_forward::primitive_desc forward(const dnnl::engine& engine,
                                                         const ConvolutionDescs& d,
                                                         const dnnl::primitive_attr& attr) {
  return {{dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct, d.src, d.weights,
           d.bias, d.dst, d.strides, d.dilates, d.padding, d.padding},
          attr,
          engine};
}
inline dnnl::convolution_backward_data::primitive_desc backward_data(
    const dnnl::engine& engine, const ConvolutionDescs& d,
    const dnnl::convolution_forward::primitive_desc& hint, const dnnl::primitive_attr& attr) {
  return {{dnnl::algorithm::convolution_direct, d.src, d.weights, d.dst, d.strides, d.dilates,
           d.padding, d.padding},
          attr,
          engine,
          hint};
}
inline dnnl::convolution_backward_weights::primitive_desc backward_weights(
    const dnnl::engine& engine, const ConvolutionDescs& d,
    const dnnl::convolution_forward::primitive_desc& hint, const dnnl::primitive_attr& attr) {
  return {{dnnl::algorithm::convolution_direct, d.src, d.weights, d.bias, d.dst, d.strides,
           d.dilates, d.padding, d.padding},
          attr,
          engine,
          hint};
}
inline dnnl::matmul::primitive_desc matmul(const dnnl::engine& engine, const dnnl::memory::desc& a,
                                           const dnnl::memory::desc& b,
                                           const dnnl::memory::desc& bias,
                                           const dnnl::memory::desc& c,
                                           const dnnl::primitive_attr& attr) {
  return {{a, b, bias, c}, attr, engine};
}

#endif

/// Lets a reorder or a product add to its destination.
inline dnnl::primitive_attr accumulating() {
  dnnl::primitive_attr attr;
  dnnl::post_ops ops;
  ops.append_sum(1.0f);
  attr.set_post_ops(ops);
  return attr;
}

}  // namespace starling::cpu::dnnl_compat
