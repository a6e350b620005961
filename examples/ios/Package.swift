// swift-tools-version:5.9
import PackageDescription

let package = Package(
    name: "Specc",
    platforms: [.iOS(.v15), .macOS(.v12)],
    products: [.library(name: "Specc", targets: ["Specc"])],
    targets: [
        .systemLibrary(name: "CSpecc"),
        .target(name: "Specc", dependencies: ["CSpecc"], linkerSettings: [.linkedLibrary("c++")]),
    ]
)
