#include "task.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>

namespace runner {
namespace {

constexpr int64_t kLine = 64, kBallast = 16 << 20, kLittle = 16 << 10;  // bytes

bool expanded(const at::Tensor& t) {
    for (int64_t d = 0; d < t.dim(); ++d)
        if (t.stride(d) == 0 && t.size(d) > 1) return true;
    return false;
}

// A copy that starts `lines` cache lines into an allocation of its own; layout and requires_grad stay.
at::Tensor placed(const at::Tensor& t, int64_t lines) {
    const at::Tensor from = t.detach();
    if (expanded(t)) return from.clone().set_requires_grad(t.requires_grad());
    int64_t extent = 1;
    for (int64_t d = 0; d < t.dim(); ++d) extent += std::max<int64_t>(t.size(d) - 1, 0) * t.stride(d);
    const int64_t size = t.element_size();
    const at::Tensor block = at::empty({(extent + 1) * size + kLine * (lines + 1)}, t.options().dtype(at::kByte));
    const int64_t ahead = -reinterpret_cast<intptr_t>(block.data_ptr()) & (kLine - 1);
    at::Tensor copy = at::empty({0}, t.options());
    copy.set_(block.storage(), (ahead + kLine * lines) / size, t.sizes(), t.strides());
    return copy.copy_(from).set_requires_grad(t.requires_grad());
}

// Torch only warns where a backward ends at an operator whose gradient is not in C++, and goes on without it.
class LostGradients : public c10::WarningHandler {
    void process(const c10::Warning& warning) override {
        const std::string& text = warning.msg();
        const size_t end = text.find(": an autograd kernel was not registered");
        if (end == std::string::npos) return WarningHandler::process(warning);
        throw Problem(kRaised, "no gradient path: " + text.substr(0, end) + " has no gradient in C++");
    }
};

}  // namespace

Direction direction_named(const std::string& name) {
    if (name == "inference") return Direction::inference;
    if (name == "forward") return Direction::forward;
    if (name == "backward") return Direction::backward;
    if (name == "forward_backward") return Direction::forward_backward;
    throw Problem(kUsage, "no direction " + name + ": inference, forward, backward or forward_backward");
}

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Task::set(Direction direction, const Tensors& inputs, const at::Tensor& grad) {
    if (direction != Direction::inference && !model_.trains())
        throw Problem(kUsage, std::string(model_.kind()) + " records no graph: inference is all it can do");
    direction_ = direction;
    arrives_ = false;
    output_ = at::Tensor();
    grad_ = grad.defined() ? grad.to(device_) : grad;
    inputs_.clear();
    for (const at::Tensor& x : inputs) {
        const bool wanted = x.requires_grad() && direction != Direction::inference;
        inputs_.push_back(x.detach().to(device_).set_requires_grad(wanted));
    }
    model_.check(inputs_);
}

void Task::place(uint64_t seed) {
    std::mt19937_64 random(seed);
    if (direction_ == Direction::backward) output_ = at::Tensor();  // its graph holds the old inputs
    Tensors blocks, copies;
    for (const at::Tensor& x : inputs_) {
        const int64_t most = 64 + std::min<int64_t>(x.nbytes(), kBallast) / kLine;
        blocks.push_back(at::empty({kLine * static_cast<int64_t>(1 + random() % most)}, x.options().dtype(at::kByte)));
    }
    ballast_ = std::move(blocks);
    for (const at::Tensor& x : inputs_) copies.push_back(placed(x, static_cast<int64_t>(random() % 64)));
    inputs_ = std::move(copies);
}

uintptr_t Task::touch() {
    window(1);
    const bool matters = !fresh() && output_.is_cpu() && output_.layout() == at::kStrided;
    if (!matters || static_cast<int64_t>(output_.nbytes()) <= kLittle) return 0;
    return reinterpret_cast<uintptr_t>(output_.const_data_ptr());
}

void Task::settle_outputs(uint64_t& place, int64_t calls) {
    const int several = calls >= 16 ? 4 : 2;
    for (int64_t left = std::max<int64_t>(2, calls / several); left-- > 0;) {
        this->place(place++);
        const uintptr_t first = touch();
        bool stays = true;
        for (int i = 1; first && stays && i < several; ++i) stays = touch() == first;
        if (stays) return;
    }
}

double Task::window(int64_t calls) {
    if (!fresh() || arrives_) return time(calls);
    LostGradients lost;
    const c10::WarningUtils::WarningHandlerGuard guard(&lost);
    const double seconds = time(calls);
    arrives_ = !gradients().empty();
    if (!arrives_) throw Problem(kRaised, "no gradient path: no input and no parameter gets a gradient");
    return seconds;
}

double Task::time(int64_t calls) {
    const at::AutoGradMode mode(direction_ != Direction::inference);
    double total = 0;
    if (!fresh() && !device_.is_cuda()) {
        // One pair of clock readings for all calls: theirs would drown a small op.
        const double start = now();
        for (int64_t i = 0; i < calls; ++i) call();
        return (now() - start) / static_cast<double>(calls);
    }
    for (int64_t i = 0; i < calls; ++i) {
        if (fresh()) prepare();
        settle();
        const double start = now();
        call();
        settle();
        total += now() - start;
    }
    return total / static_cast<double>(calls);
}

Named Task::leaves() const {
    Named all;
    for (size_t i = 0; i < inputs_.size(); ++i)
        if (inputs_[i].requires_grad()) all.emplace_back("input " + std::to_string(i), inputs_[i]);
    for (auto& one : model_.parameters()) all.push_back(std::move(one));
    return all;
}

Named Task::gradients() const {
    Named found;
    for (const auto& [name, leaf] : leaves())
        if (leaf.grad().defined()) found.emplace_back(name, leaf.grad());
    return found;
}

void Task::prepare() {
    output_ = at::Tensor();  // frees the last graph outside the window
    for (const auto& [name, leaf] : leaves()) leaf.mutable_grad() = at::Tensor();
    if (direction_ == Direction::backward) forward();
}

void Task::forward() {
    output_ = at::Tensor();  // freed first, so that the next lies where this one lay
    output_ = model_.call(inputs_);
    if (fresh() && !output_.requires_grad())
        throw Problem(kRaised, "no gradient path: the output does not require a gradient");
}

void Task::call() {
    if (direction_ == Direction::backward) {
        torch::autograd::backward({output_}, {grad_});
        return;
    }
    forward();
    if (direction_ == Direction::forward_backward) torch::autograd::backward({output_.mean()}, {});
}

void Task::settle() const {
    if (device_.is_cuda()) torch::cuda::synchronize(device_.index());
}

}  // namespace runner
