// What one call does, where its inputs lie, and how long it takes.
#pragma once

#include <cstdint>
#include <random>

#include "model.h"

namespace runner {

enum class Direction { inference, forward, backward, forward_backward };

Direction direction_named(const std::string& name);  // throws Problem

// Steady host clock, in seconds.
double now();

class Task {
public:
    Task(Model& model, at::Device device) : model_(model), device_(device) {}

    // Inputs that want a gradient say so by requires_grad. `grad` is what `backward` starts from; may be undefined.
    void set(Direction direction, const Tensors& inputs, const at::Tensor& grad);

    // Copy the inputs to random 64-byte-aligned places behind blocks of random size, so that outputs move too.
    void place(uint64_t seed);

    // Make a call; where its output lies, 0 where that is of no matter. As bench/task.py has it.
    uintptr_t touch();

    // Go to new places, `place` of them so far, until outputs stay where they are. As bench/measure.py has it.
    void settle_outputs(uint64_t& place, int64_t calls);

    // Seconds a call over so many, the device waited for. What a backward needs beforehand is outside the clock. Throws
    // Problem where no gradient arrives.
    double window(int64_t calls);

    const Tensors& inputs() const { return inputs_; }
    const at::Tensor& output() const { return output_; }
    Named gradients() const;

private:
    bool fresh() const { return direction_ == Direction::backward || direction_ == Direction::forward_backward; }
    double time(int64_t calls);
    void prepare();
    void call();
    void forward();
    void settle() const;
    Named leaves() const;

    Model& model_;
    at::Device device_;
    Direction direction_ = Direction::inference;
    Tensors inputs_, ballast_;
    at::Tensor output_, grad_;
    bool arrives_ = false;  // whether a backward has been seen to bring gradients
};

}  // namespace runner
