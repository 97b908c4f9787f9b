"""What `charcnn.ops` offers: a name loads, with its own module alone, when it is first used."""

from . import chain as chain
from . import reference as reference
from .argmax import argmax_loops as argmax_loops
from .argmax import argmax_naive as argmax_naive
from .batchnorm2d import batchnorm2d_loops as batchnorm2d_loops
from .batchnorm2d import batchnorm2d_naive as batchnorm2d_naive
from .batchnorm2d import batchnorm2d_relu_naive as batchnorm2d_relu_naive
from .chain.blocks import (
    conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_pairs as conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_pairs,
)
from .chain.blocks import (
    conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_whole as conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_whole,
)
from .chain.blocks2d import (
    conv2d_relu_maxpool2d_conv2d_relu_maxpool2d_rolling as conv2d_relu_maxpool2d_conv2d_relu_maxpool2d_rolling,
)
from .chain.blocks2d import (
    conv2d_relu_maxpool2d_conv2d_relu_maxpool2d_tiles as conv2d_relu_maxpool2d_conv2d_relu_maxpool2d_tiles,
)
from .chain.blocks2d import (
    conv2d_relu_maxpool2d_conv2d_relu_maxpool2d_whole as conv2d_relu_maxpool2d_conv2d_relu_maxpool2d_whole,
)
from .collapse import collapse_loops as collapse_loops
from .collapse import collapse_naive as collapse_naive
from .conv1d.coalesced import conv1d_nlc_coalesced as conv1d_nlc_coalesced
from .conv1d.cpu_gemm import conv1d_cpu_gemm as conv1d_cpu_gemm
from .conv1d.cpu_gemm import conv1d_relu_cpu_gemm as conv1d_relu_cpu_gemm
from .conv1d.double_buffered_variants import conv1d_nlc_double_buffered as conv1d_nlc_double_buffered
from .conv1d.double_buffered_variants import (
    conv1d_relu_maxpool1d_nlc_double_buffered as conv1d_relu_maxpool1d_nlc_double_buffered,
)
from .conv1d.double_buffered_variants import conv1d_relu_nlc_double_buffered as conv1d_relu_nlc_double_buffered
from .conv1d.double_buffered_variants import conv1d_stat_nlc_double_buffered as conv1d_stat_nlc_double_buffered
from .conv1d.loops import conv1d_loops as conv1d_loops
from .conv1d.mma.variants import conv1d_nlc_mma as conv1d_nlc_mma
from .conv1d.mma.variants import conv1d_relu_maxpool1d_nlc_mma as conv1d_relu_maxpool1d_nlc_mma
from .conv1d.mma.variants import conv1d_relu_nlc_mma as conv1d_relu_nlc_mma
from .conv1d.mma.variants import conv1d_stat_nlc_mma as conv1d_stat_nlc_mma
from .conv1d.mma.variants import linear_nlc_mma as linear_nlc_mma
from .conv1d.mma.variants import linear_relu_nlc_mma as linear_relu_nlc_mma
from .conv1d.naive import conv1d_naive as conv1d_naive
from .conv1d.naive import conv1d_relu_maxpool1d_naive as conv1d_relu_maxpool1d_naive
from .conv1d.naive import conv1d_relu_naive as conv1d_relu_naive
from .conv1d.naive import conv1d_stat_naive as conv1d_stat_naive
from .conv1d.register_tiled import conv1d_nlc_register_tiled as conv1d_nlc_register_tiled
from .conv1d.small_batch import conv1d_nlc_small_batch as conv1d_nlc_small_batch
from .conv1d.small_batch import conv1d_relu_maxpool1d_nlc_small_batch as conv1d_relu_maxpool1d_nlc_small_batch
from .conv1d.small_batch import conv1d_relu_nlc_small_batch as conv1d_relu_nlc_small_batch
from .conv1d.tiled import conv1d_nlc_tiled as conv1d_nlc_tiled
from .conv1d.vectorized import conv1d_nlc_vectorized as conv1d_nlc_vectorized
from .conv1d.wgmma.variants import conv1d_nlc_wgmma as conv1d_nlc_wgmma
from .conv1d.wgmma.variants import conv1d_relu_maxpool1d_nlc_wgmma as conv1d_relu_maxpool1d_nlc_wgmma
from .conv1d.wgmma.variants import conv1d_relu_nlc_wgmma as conv1d_relu_nlc_wgmma
from .conv1d.wgmma.variants import conv1d_stat_nlc_wgmma as conv1d_stat_nlc_wgmma
from .conv1d.wgmma.variants import linear_nlc_wgmma as linear_nlc_wgmma
from .conv1d.wgmma.variants import linear_relu_nlc_wgmma as linear_relu_nlc_wgmma
from .conv1d.winograd import conv1d_nlc_winograd as conv1d_nlc_winograd
from .conv1d.winograd import conv1d_relu_maxpool1d_nlc_winograd as conv1d_relu_maxpool1d_nlc_winograd
from .conv1d.winograd import conv1d_relu_nlc_winograd as conv1d_relu_nlc_winograd
from .conv1d.winograd import conv1d_stat_nlc_winograd as conv1d_stat_nlc_winograd
from .conv1d.winograd_cpu import conv1d_nlc_winograd_cpu as conv1d_nlc_winograd_cpu
from .conv1d.winograd_cpu import (
    conv1d_relu_maxpool1d_nlc_winograd_cpu as conv1d_relu_maxpool1d_nlc_winograd_cpu,
)
from .conv1d.winograd_cpu import conv1d_relu_nlc_winograd_cpu as conv1d_relu_nlc_winograd_cpu
from .conv2d.cpu_direct import conv2d_cpu_direct as conv2d_cpu_direct
from .conv2d.cpu_direct import conv2d_relu_cpu_direct as conv2d_relu_cpu_direct
from .conv2d.cpu_gemm import conv2d_cpu_gemm as conv2d_cpu_gemm
from .conv2d.cpu_gemm import conv2d_nhwc_cpu_gemm as conv2d_nhwc_cpu_gemm
from .conv2d.cpu_gemm import conv2d_relu_cpu_gemm as conv2d_relu_cpu_gemm
from .conv2d.cpu_gemm import conv2d_relu_nhwc_cpu_gemm as conv2d_relu_nhwc_cpu_gemm
from .conv2d.direct import conv2d_direct as conv2d_direct
from .conv2d.direct import conv2d_relu_direct as conv2d_relu_direct
from .conv2d.direct import conv2d_relu_maxpool2d_direct as conv2d_relu_maxpool2d_direct
from .conv2d.direct import conv2d_tanh_direct as conv2d_tanh_direct
from .conv2d.direct import conv2d_tanh_maxpool2d_direct as conv2d_tanh_maxpool2d_direct
from .conv2d.direct_mma import conv2d_direct_mma as conv2d_direct_mma
from .conv2d.direct_mma import conv2d_relu_direct_mma as conv2d_relu_direct_mma
from .conv2d.direct_mma import conv2d_tanh_direct_mma as conv2d_tanh_direct_mma
from .conv2d.double_buffered import conv2d_nhwc_double_buffered as conv2d_nhwc_double_buffered
from .conv2d.double_buffered import conv2d_relu_nhwc_double_buffered as conv2d_relu_nhwc_double_buffered
from .conv2d.loops import conv2d_loops as conv2d_loops
from .conv2d.mma import conv2d_nhwc_mma as conv2d_nhwc_mma
from .conv2d.mma import conv2d_relu_nhwc_mma as conv2d_relu_nhwc_mma
from .conv2d.naive import conv2d_leaky_relu_naive as conv2d_leaky_relu_naive
from .conv2d.naive import conv2d_naive as conv2d_naive
from .conv2d.naive import conv2d_relu_global_avgpool2d_naive as conv2d_relu_global_avgpool2d_naive
from .conv2d.naive import conv2d_relu_maxpool2d_naive as conv2d_relu_maxpool2d_naive
from .conv2d.naive import conv2d_relu_naive as conv2d_relu_naive
from .conv2d.naive import conv2d_sigmoid_naive as conv2d_sigmoid_naive
from .conv2d.naive import conv2d_tanh_maxpool2d_naive as conv2d_tanh_maxpool2d_naive
from .conv2d.naive import conv2d_tanh_naive as conv2d_tanh_naive
from .conv2d.wgmma import conv2d_nhwc_wgmma as conv2d_nhwc_wgmma
from .conv2d.wgmma import conv2d_relu_nhwc_wgmma as conv2d_relu_nhwc_wgmma
from .conv2d.winograd import conv2d_nhwc_winograd as conv2d_nhwc_winograd
from .conv2d.winograd import conv2d_relu_nhwc_winograd as conv2d_relu_nhwc_winograd
from .conv2d.winograd_cpu import conv2d_nhwc_winograd_cpu as conv2d_nhwc_winograd_cpu
from .conv2d.winograd_cpu import conv2d_relu_nhwc_winograd_cpu as conv2d_relu_nhwc_winograd_cpu
from .conv2d.winograd_rows import conv2d_relu_winograd_rows_cpu as conv2d_relu_winograd_rows_cpu
from .conv2d.winograd_rows import conv2d_winograd_rows_cpu as conv2d_winograd_rows_cpu
from .images_cpu import avgpool2d_nhwc_cpu_vector as avgpool2d_nhwc_cpu_vector
from .images_cpu import gelu_cpu_vector as gelu_cpu_vector
from .images_cpu import leaky_relu_cpu_vector as leaky_relu_cpu_vector
from .images_cpu import local_response_norm_nhwc_cpu_vector as local_response_norm_nhwc_cpu_vector
from .images_cpu import maxpool2d_nhwc_cpu_vector as maxpool2d_nhwc_cpu_vector
from .images_cpu import pixels_nhwc_cpu_vector as pixels_nhwc_cpu_vector
from .images_cpu import sigmoid_cpu_vector as sigmoid_cpu_vector
from .images_cpu import tanh_cpu_vector as tanh_cpu_vector
from .layernorm.layernorm import layernorm_loops as layernorm_loops
from .layernorm.layernorm import layernorm_naive as layernorm_naive
from .layernorm.layernorm import layernorm_relu_naive as layernorm_relu_naive
from .layernorm.relu_maxpool1d import layernorm_relu_maxpool1d_naive as layernorm_relu_maxpool1d_naive
from .layernorm.relu_maxpool1d_nlc import (
    layernorm_relu_maxpool1d_nlc_coalesced as layernorm_relu_maxpool1d_nlc_coalesced,
)
from .layernorm.relu_maxpool1d_nlc_precisions import (
    layernorm_relu_maxpool1d_nlc_vectorized as layernorm_relu_maxpool1d_nlc_vectorized,
)
from .linear.linear import collapse_linear_naive as collapse_linear_naive
from .linear.linear import linear_cpu_gemm as linear_cpu_gemm
from .linear.linear import linear_gelu_naive as linear_gelu_naive
from .linear.linear import linear_leaky_relu_naive as linear_leaky_relu_naive
from .linear.linear import linear_loops as linear_loops
from .linear.linear import linear_maxout_naive as linear_maxout_naive
from .linear.linear import linear_naive as linear_naive
from .linear.linear import linear_relu_cpu_gemm as linear_relu_cpu_gemm
from .linear.linear import linear_relu_naive as linear_relu_naive
from .linear.linear import linear_sigmoid_naive as linear_sigmoid_naive
from .linear.linear import linear_tanh_naive as linear_tanh_naive
from .linear.linear_kn import linear_nlc_double_buffered as linear_nlc_double_buffered
from .linear.linear_kn import linear_relu_nlc_double_buffered as linear_relu_nlc_double_buffered
from .linear.linear_relu_linear import linear_gelu_linear_naive as linear_gelu_linear_naive
from .linear.linear_relu_linear import linear_relu_linear_naive as linear_relu_linear_naive
from .linear.softmax_argmax import linear_argmax_naive as linear_argmax_naive
from .linear.softmax_argmax import linear_softmax_naive as linear_softmax_naive
from .local_response_norm import local_response_norm_loops as local_response_norm_loops
from .local_response_norm import local_response_norm_naive as local_response_norm_naive
from .local_response_norm_nhwc import local_response_norm_nhwc_coalesced as local_response_norm_nhwc_coalesced
from .local_response_norm_nhwc import local_response_norm_nhwc_vectorized as local_response_norm_nhwc_vectorized
from .maxpool1d import maxpool1d_loops as maxpool1d_loops
from .maxpool1d import maxpool1d_naive as maxpool1d_naive
from .maxpool1d import relu_maxpool1d_naive as relu_maxpool1d_naive
from .one_hot import one_hot_loops as one_hot_loops
from .one_hot import one_hot_naive as one_hot_naive
from .one_hot_nlc import one_hot_nlc_coalesced as one_hot_nlc_coalesced
from .pixels import pixels_loops as pixels_loops
from .pixels import pixels_naive as pixels_naive
from .pixels_nhwc import pixels_nhwc_coalesced as pixels_nhwc_coalesced
from .pixels_nhwc import pixels_nhwc_vectorized as pixels_nhwc_vectorized
from .pointwise import gelu_loops as gelu_loops
from .pointwise import gelu_naive as gelu_naive
from .pointwise import leaky_relu_loops as leaky_relu_loops
from .pointwise import leaky_relu_naive as leaky_relu_naive
from .pointwise import maxout_loops as maxout_loops
from .pointwise import maxout_naive as maxout_naive
from .pointwise import relu_loops as relu_loops
from .pointwise import relu_naive as relu_naive
from .pointwise import sigmoid_loops as sigmoid_loops
from .pointwise import sigmoid_naive as sigmoid_naive
from .pointwise import tanh_loops as tanh_loops
from .pointwise import tanh_naive as tanh_naive
from .pool2d import avgpool2d_loops as avgpool2d_loops
from .pool2d import avgpool2d_naive as avgpool2d_naive
from .pool2d import global_avgpool2d_loops as global_avgpool2d_loops
from .pool2d import global_avgpool2d_naive as global_avgpool2d_naive
from .pool2d import maxpool2d_loops as maxpool2d_loops
from .pool2d import maxpool2d_naive as maxpool2d_naive
from .pool2d_nhwc import avgpool2d_nhwc_coalesced as avgpool2d_nhwc_coalesced
from .pool2d_nhwc import avgpool2d_nhwc_vectorized as avgpool2d_nhwc_vectorized
from .pool2d_nhwc import global_avgpool2d_nhwc_coalesced as global_avgpool2d_nhwc_coalesced
from .pool2d_nhwc import global_avgpool2d_nhwc_vectorized as global_avgpool2d_nhwc_vectorized
from .pool2d_nhwc import maxpool2d_nhwc_coalesced as maxpool2d_nhwc_coalesced
from .pool2d_nhwc import maxpool2d_nhwc_vectorized as maxpool2d_nhwc_vectorized
from .softmax.loops import softmax_loops as softmax_loops
from .softmax.naive import softmax_naive as softmax_naive
from .token_conv1d.cpu import one_hot_conv1d_cpu_gather as one_hot_conv1d_cpu_gather
from .token_conv1d.gather import (
    one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather as one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather,
)
from .token_conv1d.gather import one_hot_conv1d_nlc_gather as one_hot_conv1d_nlc_gather
from .token_conv1d.gather import one_hot_conv1d_relu_maxpool1d_nlc_gather as one_hot_conv1d_relu_maxpool1d_nlc_gather
from .token_conv1d.lag_sums import one_hot_conv1d_stat_nlc_lag_sums as one_hot_conv1d_stat_nlc_lag_sums
from .token_conv1d.lags import one_hot_conv1d_stat_nlc_lags as one_hot_conv1d_stat_nlc_lags
from .token_conv1d.weights import (
    one_hot_conv1d_layernorm_relu_maxpool1d_nlc_warp_gather as one_hot_conv1d_layernorm_relu_maxpool1d_nlc_warp_gather,
)
from .token_conv1d.weights import (
    one_hot_conv1d_relu_maxpool1d_nlc_warp_gather as one_hot_conv1d_relu_maxpool1d_nlc_warp_gather,
)
