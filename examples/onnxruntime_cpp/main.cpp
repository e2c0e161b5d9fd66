// Run an ONNX file in ONNX Runtime: files with the bytes of its inputs in, files with those of its outputs out.
//
//     run_onnx MODEL.onnx FOLDER [PROVIDER.so]
//
// The folder has a file NAME.raw for each input; the program writes NAME.raw for each output. An input may have one
// size that varies: the size of its file tells it. Without a provider's library the CPU provider runs the model; with
// libonnxruntime_providers_nv_tensorrt_rtx.so a GPU runs the plan that `compiled.save(…, format="epcontext")` wrote.
// ONNX Runtime 1.23 or newer, its headers and its library, for example Debian's libonnxruntime-dev:
//
//     g++ -std=c++17 -O2 -I/usr/include/onnxruntime main.cpp -lonnxruntime -o run_onnx

#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

constexpr const char* kProvider = "nv_tensorrt_rtx";

std::vector<char> Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

void Write(const std::string& path, const Ort::Value& tensor) {
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(tensor.GetTensorRawData()), tensor.GetTensorSizeInBytes());
  if (!file.flush()) throw std::runtime_error(path + " cannot be written");
}

void AddProvider(Ort::Env& env, Ort::SessionOptions& options, const std::string& library) {
  env.RegisterExecutionProviderLibrary(kProvider, library);
  std::vector<Ort::ConstEpDevice> devices = env.GetEpDevices();
  auto device = std::find_if(devices.begin(), devices.end(), [](const Ort::ConstEpDevice& each) {
    return std::strcmp(each.EpName(), kProvider) == 0;
  });
  if (device == devices.end()) throw std::runtime_error("no device of the provider: it does not take this GPU");
  options.AppendExecutionProvider_V2(env, {*device}, std::unordered_map<std::string, std::string>{});
}

Ort::Value Input(const Ort::Session& session, size_t index, const std::string& path) {
  Ort::AllocatorWithDefaultOptions allocator;
  const std::vector<char> bytes = Read(path);
  const Ort::TypeInfo type = session.GetInputTypeInfo(index);
  const auto info = type.GetTensorTypeAndShapeInfo();
  std::vector<int64_t> shape = info.GetShape();
  std::string expected = "expected ";
  if (auto varies = std::find(shape.begin(), shape.end(), -1); varies != shape.end()) {
    if (std::count(shape.begin(), shape.end(), -1) > 1) throw std::runtime_error(path + ": several sizes vary");
    *varies = 1;
    const Ort::Value one = Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), info.GetElementType());
    *varies = static_cast<int64_t>(bytes.size() / std::max<size_t>(one.GetTensorSizeInBytes(), 1));
    expected += "a multiple of " + std::to_string(one.GetTensorSizeInBytes());
  }
  Ort::Value tensor = Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), info.GetElementType());
  if (const size_t size = tensor.GetTensorSizeInBytes(); size != bytes.size()) {
    if (expected.back() == ' ') expected += std::to_string(size);
    throw std::runtime_error(path + " has " + std::to_string(bytes.size()) + " bytes, " + expected);
  }
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tensor.GetTensorMutableRawData()));
  return tensor;
}

void Run(const std::string& model, const std::string& folder, const char* provider) {
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "run_onnx");
  Ort::SessionOptions options;
  if (provider) AddProvider(env, options, provider);
  Ort::Session session(env, model.c_str(), options);
  const std::vector<std::string> inputs = session.GetInputNames(), outputs = session.GetOutputNames();
  std::vector<const char*> input_names, output_names;
  std::vector<Ort::Value> values;
  for (size_t i = 0; i < inputs.size(); ++i) {
    input_names.push_back(inputs[i].c_str());
    values.push_back(Input(session, i, folder + "/" + inputs[i] + ".raw"));
  }
  for (const std::string& name : outputs) output_names.push_back(name.c_str());
  const auto results = session.Run(Ort::RunOptions{}, input_names.data(), values.data(), values.size(),
                                   output_names.data(), output_names.size());
  for (size_t i = 0; i < results.size(); ++i) Write(folder + "/" + outputs[i] + ".raw", results[i]);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3 || argc > 4) throw std::runtime_error("usage: run_onnx MODEL.onnx FOLDER [PROVIDER.so]");
  Run(argv[1], argv[2], argc == 4 ? argv[3] : nullptr);
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
