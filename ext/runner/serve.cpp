#include "serve.h"

#include <ATen/Context.h>

#include <sstream>

#include "process.h"
#include "report.h"

namespace runner {
namespace {

Json answer(Task& task, std::istringstream& words) {
    std::string command, word;
    words >> command;
    Json json;
    if (command == "policy") {
        bool tf32 = false, benchmark = false, deterministic = false;
        words >> word >> tf32 >> benchmark >> deterministic;
        if (word == "warm") word = warm_allocator();
        json.text("allocator", word);
        at::globalContext().setAllowTF32CuBLAS(tf32);
        at::globalContext().setAllowTF32CuDNN(tf32);
        at::globalContext().setBenchmarkCuDNN(benchmark);
        at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
    } else if (command == "set") {
        std::string inputs, grad;
        words >> word >> inputs >> grad;
        task.set(direction_named(word), read_tensors(inputs), grad.empty() ? at::Tensor() : read_tensors(grad).at(0));
    } else if (command == "place") {
        uint64_t seed = 0;
        words >> seed;
        task.place(seed);
    } else if (command == "touch") {
        json.add("output", std::to_string(task.touch()));
    } else if (command == "window") {
        int64_t calls = 1;
        words >> calls;
        json.number("seconds", task.window(calls));
    } else if (command == "results") {
        words >> word;
        write_results(word, task.output(), task.gradients(), task.inputs());
    } else {
        throw Problem(kUsage, "no command " + command);
    }
    return json.number("faults", static_cast<double>(page_faults()));
}

}  // namespace

void serve(Task& task, std::istream& commands, std::ostream& answers) {
    for (std::string line; std::getline(commands, line);) {
        std::istringstream words(line);
        std::string reply;
        try {
            reply = answer(task, words).str();
        } catch (const std::exception& error) {
            reply = Json().text("error", one_line(error.what())).str();
        }
        answers << reply << std::endl;
    }
}

}  // namespace runner
