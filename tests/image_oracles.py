"""The definitions of `image_cases`' operators, one output at a time in plain Python; and what PyTorch has for them."""

from __future__ import annotations

import math

import numpy as np

from charcnn.catalog import IMAGE_CHAIN


def relu(x):
    return np.array([value if value > 0 else 0.0 for value in x.flat]).reshape(x.shape)


def tanh(x):
    return np.array([math.tanh(value) for value in x.flat]).reshape(x.shape)


def gelu(x):
    return np.array([value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x.flat]).reshape(x.shape)


def sigmoid(x):
    return np.array([1 / (1 + math.exp(-value)) for value in x.flat]).reshape(x.shape)


def leaky_relu(x, negative_slope=0.01):
    return np.array([max(negative_slope * value, value) for value in x.flat]).reshape(x.shape)


def maxout(x, pieces=2):
    out = np.zeros((len(x), x.shape[1] // pieces, *x.shape[2:]))
    for n, c, *rest in np.ndindex(out.shape):
        out[(n, c, *rest)] = max(x[(n, c * pieces + i, *rest)] for i in range(pieces))
    return out


def linear_maxout(x, weight, bias, pieces=2):
    return maxout(linear(x, weight, bias), pieces)


def windows_of(shape, kernel, stride, padding, dilation=(1, 1)):
    """Of an image (H, W): the windows' number, and of each its pixels, as (place in the kernel, place in the image)."""
    (height, width), (top, bottom, left, right) = shape, padding
    rows = (height + top + bottom - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
    columns = (width + left + right - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
    places = {}
    for p, q in np.ndindex(rows, columns):
        taps = [
            ((i, j), (p * stride[0] - top + i * dilation[0], q * stride[1] - left + j * dilation[1]))
            for i, j in np.ndindex(*kernel)
        ]
        places[p, q] = [(tap, (y, x)) for tap, (y, x) in taps if 0 <= y < height and 0 <= x < width]
    return (rows, columns), places


def conv2d(x, weight, bias, stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1):
    c_out, c_in, *kernel = weight.shape
    size, places = windows_of(x.shape[2:], kernel, stride, padding, dilation)
    out = np.zeros((len(x), c_out, *size))
    for n, o, p, q in np.ndindex(out.shape):
        first = o // (c_out // groups) * c_in
        products = [x[n, first + c][at] * weight[o, c][tap] for c in range(c_in) for tap, at in places[p, q]]
        out[n, o, p, q] = math.fsum([bias[o], *products])
    return out


def pooled(x, kernel_size, stride, padding, made):
    size, places = windows_of(x.shape[2:], kernel_size, stride or kernel_size, padding)
    out = np.zeros((*x.shape[:2], *size))
    for n, c, p, q in np.ndindex(out.shape):
        out[n, c, p, q] = made([x[n, c][at] for _, at in places[p, q]])
    return out


def maxpool2d(x, kernel_size, stride=None, padding=(0, 0, 0, 0)):
    return pooled(x, kernel_size, stride, padding, max)


def avgpool2d(x, kernel_size, stride=None, padding=(0, 0, 0, 0), count_include_pad=True):
    area = math.prod(kernel_size)
    mean = (
        (lambda found: math.fsum(found) / area) if count_include_pad else (lambda found: math.fsum(found) / len(found))
    )
    return pooled(x, kernel_size, stride, padding, mean)


def global_avgpool2d(x):
    return avgpool2d(x, x.shape[2:])[..., 0, 0]


def batchnorm2d(x, gamma, beta, mean, variance):
    out = np.zeros(x.shape)
    for n, c, p, q in np.ndindex(x.shape):
        out[n, c, p, q] = (x[n, c, p, q] - mean[c]) / math.sqrt(variance[c] + 1e-5) * gamma[c] + beta[c]
    return out


def local_response_norm(x, size, alpha, k):
    out = np.zeros(x.shape)
    for n, c, p, q in np.ndindex(x.shape):
        near = range(max(c - size // 2, 0), min(c + (size - 1) // 2, x.shape[1] - 1) + 1)
        total = math.fsum(x[n, other, p, q] ** 2 for other in near)
        out[n, c, p, q] = x[n, c, p, q] / (k + alpha / size * total) ** 0.75
    return out


def linear(x, weight, bias):
    x = x.reshape(len(x), weight.shape[1])
    out = np.zeros((len(x), len(weight)))
    for n, o in np.ndindex(out.shape):
        out[n, o] = math.fsum([bias[o], *(x[n] * weight[o])])
    return out


def softmax(x):
    exponentials = np.array([math.exp(value) for value in x.flat]).reshape(x.shape)
    return np.array([row / math.fsum(row) for row in exponentials]).reshape(x.shape)


def argmax(x):
    return [list(row).index(max(row)) for row in x]


def with_pool(activation):
    def fused(x, weight, bias, pool_size, pool_stride=None, **options):
        return maxpool2d(activation(conv2d(x, weight, bias, **options)), pool_size, pool_stride)

    return fused


def twice(pooled_conv2d):
    def chain(x, weight1, bias1, weight2, bias2, pool_size, pool_stride=None, **pairs):
        for i, parameters in enumerate(((weight1, bias1), (weight2, bias2))):
            options = {name.removesuffix("s").replace("group", "groups"): pair[i] for name, pair in pairs.items()}
            x = pooled_conv2d(x, *parameters, pool_size, pool_stride, **options)
        return x

    return chain


def then(first, *after):
    def composed(*arguments, **options):
        y = first(*arguments, **options)
        for function in after:
            y = function(y)
        return y

    return composed


def nhwc(function):
    """On channels-last features and weights."""

    def turned(x, weight, bias, **options):
        y = function(x.transpose(0, 3, 1, 2), weight.transpose(3, 2, 0, 1), bias, **options)
        return y.transpose(0, 2, 3, 1)

    return turned


def nhwc_of(function):
    """On channels-last features alone."""

    def turned(x, *arguments, **options):
        y = function(x.transpose(0, 3, 1, 2), *arguments, **options)
        return y.transpose(0, 2, 3, 1) if y.ndim == 4 else y

    return turned


def pixels(images, tables, height, width):
    out = np.zeros((len(images), len(tables), height, width))
    for n, c, p, q in np.ndindex(out.shape):
        out[n, c, p, q] = tables[c, images[n, (c * height + p) * width + q]]
    return out


def pixels_nhwc(images, tables, height, width, channels=None):
    out = np.zeros((len(images), height, width, channels or len(tables)))
    for n, p, q, c in np.ndindex(*out.shape[:3], len(tables)):
        out[n, p, q, c] = tables[c, images[n, (c * height + p) * width + q]]
    return out


LOOPS = {
    "conv2d": conv2d,
    "conv2d_relu": then(conv2d, relu),
    "conv2d_tanh": then(conv2d, tanh),
    "conv2d_sigmoid": then(conv2d, sigmoid),
    "conv2d_leaky_relu": then(conv2d, leaky_relu),
    "conv2d_relu_maxpool2d": with_pool(relu),
    "conv2d_tanh_maxpool2d": with_pool(tanh),
    "conv2d_relu_global_avgpool2d": then(conv2d, relu, global_avgpool2d),
    IMAGE_CHAIN: twice(with_pool(relu)),
    "conv2d_nhwc": nhwc(conv2d),
    "conv2d_relu_nhwc": nhwc(then(conv2d, relu)),
    "batchnorm2d": batchnorm2d,
    "batchnorm2d_relu": then(batchnorm2d, relu),
    "maxpool2d": maxpool2d,
    "avgpool2d": avgpool2d,
    "global_avgpool2d": global_avgpool2d,
    "local_response_norm": local_response_norm,
    "maxpool2d_nhwc": nhwc_of(maxpool2d),
    "avgpool2d_nhwc": nhwc_of(avgpool2d),
    "global_avgpool2d_nhwc": nhwc_of(global_avgpool2d),
    "local_response_norm_nhwc": nhwc_of(local_response_norm),
    "pixels": pixels,
    "pixels_nhwc": pixels_nhwc,
    "tanh": tanh,
    "gelu": gelu,
    "linear_tanh": then(linear, tanh),
    "linear_gelu": then(linear, gelu),
    "sigmoid": sigmoid,
    "leaky_relu": leaky_relu,
    "maxout": maxout,
    "linear_sigmoid": then(linear, sigmoid),
    "linear_leaky_relu": then(linear, leaky_relu),
    "linear_maxout": linear_maxout,
    "linear_gelu_linear": lambda x, *args: linear(gelu(linear(x, *args[:2])), *args[2:]),
    "linear_softmax": then(linear, softmax),
    "linear_argmax": then(linear, argmax),
    "collapse_linear": linear,
}


def torch_functions(torch):
    """By operator, on PyTorch's arrays. Its own padding is the same on opposite sides, so it pads before."""
    f = torch.nn.functional

    def sides(padding):
        top, bottom, left, right = padding
        return left, right, top, bottom

    def conv2d(x, weight, bias, padding=(0, 0, 0, 0), **options):
        return f.conv2d(f.pad(x, sides(padding)), weight, bias, **options)

    def max_pool2d(x, kernel_size, stride=None, padding=(0, 0, 0, 0)):
        return f.max_pool2d(f.pad(x, sides(padding), value=-math.inf), kernel_size, stride)

    def avg_pool2d(x, kernel_size, stride=None, padding=(0, 0, 0, 0), count_include_pad=True):
        sums = f.avg_pool2d(f.pad(x, sides(padding)), kernel_size, stride)
        if count_include_pad:
            return sums
        return sums / f.avg_pool2d(f.pad(torch.ones_like(x), sides(padding)), kernel_size, stride)

    def pieces_of(x, pieces):
        return x.unflatten(1, (x.shape[1] // pieces, pieces)).amax(2)

    def average(x):
        return f.adaptive_avg_pool2d(x, 1).flatten(1)

    def batch_norm(x, gamma, beta, mean, variance):
        return f.batch_norm(x, mean, variance, gamma, beta)

    def with_pool(activation):
        def fused(x, weight, bias, pool_size, pool_stride=None, **options):
            return f.max_pool2d(activation(conv2d(x, weight, bias, **options)), pool_size, pool_stride)

        return fused

    def turned(function):
        def of(x, weight, bias, **options):
            y = function(x.permute(0, 3, 1, 2), weight.permute(3, 2, 0, 1), bias, **options)
            return y.permute(0, 2, 3, 1)

        return of

    def last(function):
        """On channels-last features alone."""

        def of(x, **options):
            y = function(x.permute(0, 3, 1, 2), **options)
            return y.permute(0, 2, 3, 1) if y.ndim == 4 else y

        return of

    def pixels(images, tables, height, width):
        rows = images.long().view(len(images), len(tables), -1)
        found = [f.embedding(rows[:, c], table[:, None]) for c, table in enumerate(tables)]
        return torch.stack(found, 1).view(len(images), len(tables), height, width)

    def pixels_nhwc(images, tables, height, width, channels=None):
        more = (channels or len(tables)) - len(tables)
        return f.pad(pixels(images, tables, height, width).permute(0, 2, 3, 1), (0, more))

    return {
        "maxpool2d_nhwc": last(max_pool2d),
        "avgpool2d_nhwc": last(avg_pool2d),
        "global_avgpool2d_nhwc": last(average),
        "local_response_norm_nhwc": last(f.local_response_norm),
        "pixels": pixels,
        "pixels_nhwc": pixels_nhwc,
        "conv2d": conv2d,
        "conv2d_relu": then(conv2d, f.relu),
        "conv2d_tanh": then(conv2d, torch.tanh),
        "conv2d_sigmoid": then(conv2d, torch.sigmoid),
        "conv2d_leaky_relu": then(conv2d, f.leaky_relu),
        "conv2d_relu_maxpool2d": with_pool(f.relu),
        "conv2d_tanh_maxpool2d": with_pool(torch.tanh),
        "conv2d_relu_global_avgpool2d": then(conv2d, f.relu, average),
        IMAGE_CHAIN: twice(with_pool(f.relu)),
        "conv2d_nhwc": turned(conv2d),
        "conv2d_relu_nhwc": turned(then(conv2d, f.relu)),
        "batchnorm2d": batch_norm,
        "batchnorm2d_relu": then(batch_norm, f.relu),
        "maxpool2d": max_pool2d,
        "avgpool2d": avg_pool2d,
        "global_avgpool2d": average,
        "local_response_norm": f.local_response_norm,
        "tanh": torch.tanh,
        "gelu": f.gelu,
        "linear_tanh": then(f.linear, torch.tanh),
        "linear_gelu": then(f.linear, f.gelu),
        "sigmoid": torch.sigmoid,
        "leaky_relu": f.leaky_relu,
        "maxout": pieces_of,
        "linear_sigmoid": then(f.linear, torch.sigmoid),
        "linear_leaky_relu": then(f.linear, f.leaky_relu),
        "linear_maxout": lambda x, weight, bias, pieces: pieces_of(f.linear(x, weight, bias), pieces),
        "linear_gelu_linear": lambda x, *args: f.linear(f.gelu(f.linear(x, *args[:2])), *args[2:]),
        "linear_softmax": then(f.linear, lambda x: f.softmax(x, dim=1)),
        "linear_argmax": then(f.linear, lambda x: x.argmax(dim=1)),
        "collapse_linear": lambda x, weight, bias: f.linear(x.flatten(1), weight, bias),
    }
